"""The verdict on the convergence proof's assumption comes from operators: others give another one."""

from __future__ import annotations

from paper.page.convergence import convergence
from paper.page.verdicts import Claim
from tinyproto.core.prototypes import Prototypes


def holds(claim: Claim) -> list[bool]:
    return [fact.holds for fact in claim.final]


def test_cps_expands_nothing_but_a_zero_is_missing_in_the_support_and_the_last_step_is_an_inequality() -> None:
    claim = convergence()
    assert holds(claim) == [False, True, False]
    assert claim.tally == "holds in part (1 of 3)"
    assert "so it is an inequality, which bounds the loss as well" in claim.evidence


def test_without_cps_and_zeros_everything_holds() -> None:
    claim = convergence(500, zeros=False)
    assert (holds(claim), claim.verdict) == ([True, True, True], "holds")


def test_without_zeros_the_support_is_the_mask() -> None:
    assert holds(convergence(zeros=False)) == [True, True, False]


def test_an_operator_that_stretches_and_sends_everything_meets_nothing() -> None:
    claim = convergence(sparse=lambda values, masks: Prototypes(2 * values.values, values.present))
    assert (holds(claim), claim.verdict) == ([False, False, False], "does not hold")
    assert "an entry outside is sent" in claim.evidence


def test_what_the_paper_does_not_cover_is_told_and_decides_nothing() -> None:
    one_scale, weighed, four_bits = (fact for fact in convergence().facts if not fact.final)
    assert "scaling by one μ (q_i = μ·n_ij) S is linear" in one_scale.words
    assert "(preset sound) S is not linear" in weighed.words
    assert "S is not linear" in four_bits.words
    assert (one_scale.holds, weighed.holds, four_bits.holds) == (True, False, False)
    assert four_bits.margin < 0  # it can expand a distance
