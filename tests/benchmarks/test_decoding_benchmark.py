"""benchmarks.decoding on a tiny model: both decoders agree; the table and its ratios."""

from __future__ import annotations

from benchmarks.decoding import __main__ as decoding
from transformer.models.architecture import Architecture

TINY = Architecture(vocab=32, d_model=16, d_ff=16, heads=2, d_kv=8, blocks=2)


def test_both_decoders_return_the_same_and_are_timed(monkeypatch):
    monkeypatch.setitem(decoding.SIZES, "tiny", TINY)
    result = decoding.measure("tiny", batch=3, length=5, new_tokens=8, rounds=2)
    assert result.tokens == 3 * 8
    assert len(result.hand_written) == len(result.meshtf) == 2
    assert result.line().split()[:2] == ["tiny", "3"]
    assert len(result.line()) == decoding.HEAD.index("processor") + len("processor")


def test_a_ratio_is_the_median_over_rounds():
    hand_written = [(1.0, 3.0), (2.0, 3.0), (4.0, 3.0)]
    meshtf = [(2.0, 6.0), (3.0, 9.0), (4.4, 3.0)]
    result = decoding.Result(
        size="small",
        batch=1,
        tokens=10,
        hand_written=[decoding.Seconds(*seconds) for seconds in hand_written],
        meshtf=[decoding.Seconds(*seconds) for seconds in meshtf],
    )
    assert (result.wall_ratio(), result.processor_ratio()) == (1.5, 2.0)
