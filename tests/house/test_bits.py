"Computed floats are compared up to rounding; equal bits only where a comment says why they are promised."
from bits import equalities
from test_readable import CODE, python_files, without_magics

LESSONS = {name: {id_: text for id_, text in texts.items() if not text.startswith("#| export")}
           for name, texts in CODE.items()}
TESTS = {name: texts for name, texts in python_files().items() if name.startswith("tests/")}


def test_computed_floats_are_compared_up_to_rounding():
    found = [(name, id_, *what) for name, texts in (LESSONS | TESTS).items() for id_, text in texts.items()
             for what in equalities(without_magics(text))]
    assert found == [], "use `close` or `test_close`, or say `# bits: why` they are equal"
