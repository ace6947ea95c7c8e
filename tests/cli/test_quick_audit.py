"An audit answers within seconds: where it computes, and when its report is there."
import pytest
import torch

from calibnb.core.predictions import Predictions
from calibnb.core.runtime import in_threads
from calibnb.evaluate import evaluate

DRAW = torch.Generator().manual_seed(0)
LOGITS = 4*torch.randn(600, 4, generator=DRAW)
TARGET = (LOGITS/2 - (-torch.rand(600, 4, generator=DRAW).log()).log()).argmax(1)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_threads_find_what_one_finds(two_threads):
    options = dict(n_boot=20, draws=5, seed=1)
    two = evaluate(Predictions(LOGITS, TARGET), **options)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    one = evaluate(Predictions(LOGITS, TARGET), **options)
    assert two.recommended == one.recommended and two.notes == one.notes and list(two.rows) == list(one.rows)
    for row, measures in one.rows.items():
        for name, m in measures.items(): assert two.rows[row][name].value == pytest.approx(m.value, rel=1e-7)


def test_threads_have_the_modes_of_the_caller_and_the_first_error_ends_them(two_threads):
    with torch.inference_mode(): assert all(in_threads(lambda i: torch.zeros(1).is_inference(), range(3)))
    assert not any(in_threads(lambda i: torch.zeros(1).is_inference(), range(3)))
    done = []
    def call(i):
        if i == 1: raise ValueError("call 1")
        done.append(i)
    with pytest.raises(ValueError, match="call 1"): list(in_threads(call, range(50)))
    assert len(done) < 49 and torch.get_num_threads() == 2
