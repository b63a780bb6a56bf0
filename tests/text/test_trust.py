"""Where KV came from and what was found of it, as it is said and marked everywhere."""

from dataclasses import replace

import pytest

from kvchat.session.kv.provenance import Trust, trust_of
from kvchat.session.tree import Session, Verdict, Verification
from kvchat.text.trust import exactness_words, trust_mark, trust_words
from tests.ui.records import ANSWER, SESSION

pytestmark = pytest.mark.pure

OWN = SESSION
IMPORTED = replace(OWN, namespace="bundle:00")


def found(verdict: Verdict, num_blocks: int = 40) -> Verification:
    return Verification(verdict=verdict, at=0.0, num_blocks=num_blocks, of_blocks=40)


@pytest.mark.parametrize(
    ("session", "verdict", "trust", "mark", "words", "exactness"),
    [
        (OWN, None, Trust.OWN, "", "", "exact"),
        (OWN, Verdict.SAMPLED, Trust.OWN, "", "KV, 8 of 40 blocks verified", "exact"),
        (OWN, Verdict.SAME, Trust.VERIFIED, "✓", "KV verified", "exact"),
        (OWN, Verdict.DIFFERENT, Trust.DIFFERENT, "!", "KV wrong in part, set aside", "exact"),
        (IMPORTED, None, Trust.UNVERIFIED, "?", "imported KV, not verified", "on imported KV, not verified"),
        (
            IMPORTED,
            Verdict.SAMPLED,
            Trust.SAMPLED,
            "?",
            "imported KV, 8 of 40 blocks verified",
            "on imported KV, verified in part",
        ),
        (
            IMPORTED,
            Verdict.DIFFERENT,
            Trust.DIFFERENT,
            "!",
            "imported KV, wrong in part",
            "on imported KV, wrong in part",
        ),
    ],
)
def test_each_state_has_its_mark_and_its_words(
    session: Session, verdict: Verdict | None, trust: Trust, mark: str, words: str, exactness: str
) -> None:
    verified = None if verdict is None else found(verdict, 8 if verdict is Verdict.SAMPLED else 40)
    session = replace(session, verification=verified)
    assert (trust_of(session), trust_mark(session), trust_words(session)) == (trust, mark, words)
    assert exactness_words(ANSWER, session) == exactness


def test_an_approximate_answer_is_called_so_where_its_kv_is_own() -> None:
    assert exactness_words(replace(ANSWER, exact=False), OWN) == "approximate"
    assert exactness_words(replace(ANSWER, exact=False), None) == "approximate"
