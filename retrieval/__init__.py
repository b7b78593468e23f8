"""Search engines behind one protocol: BM25 (embedded), Lucene, dense, hybrid, a server and its client."""
