"Computed floats are compared up to rounding; equal bits only where a comment says why they are promised."
import pytest
from bits import equalities
from test_readable import CODE, python_files, without_magics

LESSONS = {name: {id_: text for id_, text in texts.items() if not text.startswith("#| export")}
           for name, texts in CODE.items()}
TESTS = {name: texts for name, texts in python_files().items() if name.startswith("tests/")}


def test_computed_floats_are_compared_up_to_rounding():
    found = [(name, id_, *what) for name, texts in (LESSONS | TESTS).items() for id_, text in texts.items()
             for what in equalities(without_magics(text))]
    assert found == [], "use `close` or `test_close`, or say `# bits: why` they are equal"


@pytest.mark.parametrize("bad", [
    "assert x.sum().item() == y", "assert np.array_equal(p.numpy(), c.transform(z).numpy())",
    "p = c.transform(z)\nassert p.equal(q)", "test_eq(ece(p, y, [5]), torch.stack([ece(p, y, 5)]))",
    "def test():\n    want = a.softmax(1)\n    assert all((want[:, 0] == b).tolist())",
    "loss = make_loss('ce')\nassert loss(z, y) == other", "assert getattr(metrics, name)(p, y) == want",
    "assert torch.equal(a.predict(x).logits, b.predict(x).logits)", "a, b = x.log(), 1\nassert a == c",
    "assert a.mean() == b.mean()  # bits:", "with x:\n    assert -a.mean() == b",
])
def test_an_equality_is_seen(bad):
    assert len(list(equalities(bad))) == 1


@pytest.mark.parametrize("good", [
    "assert a.mean() == b.mean()  # bits: the same file", "assert x.mean() == 1/2", "assert (a > b).sum() == n",
    "assert x.sum() == pytest.approx(y)", "assert torch.equal(a, b)", "assert nll(p, y) == math.inf",
    "test_eq(z.mean().shape, (3,))", "assert sum(map(len, a)) == n", "p = x.log()\np = 3\nassert p == q",
])
def test_what_is_exact_or_marked_passes(good):
    assert list(equalities(good)) == []
