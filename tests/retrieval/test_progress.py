"""The bar of a build."""

from retrieval.progress import progress_bar


def test_every_stage_gets_a_bar_on_standard_error(capsys):
    with progress_bar() as on_progress:
        on_progress("reading", 1, None)
        on_progress("reading", 3, 3)
        on_progress("merging", 1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "reading" in err and "3/3" in err
    assert "merging" in err and "1/2" in err
