"""The verdict on the convergence proof's assumption comes from operators and recorded prototypes: others change it."""

from __future__ import annotations

import torch

from paper.page.convergence import Recorded, convergence
from paper.page.verdicts import Claim
from tinyproto.core.prototypes import Prototypes

CLASSES = torch.tensor([0, 3])
WHOLE = Recorded("somewhere", torch.ones(2, 500), CLASSES, 10)
DEAD = Recorded("elsewhere", torch.tensor([[1.0], [0.0]]).expand(2, 500), CLASSES, 10)


def holds(claim: Claim) -> list[bool]:
    return [fact.holds for fact in claim.final]


def test_cps_expands_nothing_but_a_zero_is_missing_in_the_support_and_the_last_step_is_an_inequality() -> None:
    claim = convergence([WHOLE, DEAD])
    assert holds(claim) == [False, True, False]
    assert claim.tally == "holds in part (1 of 3)"
    assert (
        "nothing outside; and all of it for these of FedProto's recorded prototypes: 100.0 % of 2 (somewhere; 0.0 % of "
        "their entries are zero), 50.0 % of 2 (elsewhere; 50.0 % of their entries are zero)." in claim.evidence
    )
    assert "so it is an inequality, which bounds the loss as well" in claim.evidence


def test_prototypes_without_a_zero_have_the_assumed_support() -> None:
    assert holds(convergence([WHOLE])) == [True, True, False]


def test_without_recorded_prototypes_nothing_is_said_of_the_support() -> None:
    claim = convergence([])
    assert claim.tally == "holds in part so far (1 of 2)"
    assert "(a)" not in claim.evidence
    assert claim.evidence.endswith("Needs the prototypes of a FedProto cell, for the support.")


def test_without_cps_everything_holds() -> None:
    claim = convergence([WHOLE], 500)
    assert (holds(claim), claim.verdict) == ([True, True, True], "holds")


def test_an_operator_that_stretches_and_sends_everything_meets_nothing() -> None:
    claim = convergence([WHOLE], sparse=lambda values, masks: Prototypes(2 * values.values, values.present))
    assert (holds(claim), claim.verdict) == ([False, False, False], "does not hold")
    assert "an entry outside is sent" in claim.evidence


def test_what_the_paper_does_not_cover_is_told_and_decides_nothing() -> None:
    one_scale, weighed, four_bits = (fact for fact in convergence([]).facts if not fact.final)
    assert "scaling by one μ (q_i = μ·n_ij) S is linear" in one_scale.words
    assert "(preset sound) S is not linear" in weighed.words
    assert "S is not linear" in four_bits.words
    assert (one_scale.holds, weighed.holds, four_bits.holds) == (True, False, False)
    assert four_bits.margin < 0  # it can expand a distance
