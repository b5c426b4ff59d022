"""The questions of NIST SP 800-226, answered from what is known of a release; the others stay open.

The publication (Guidelines for Evaluating Differential Privacy Guarantees, March 2025) stacks what a
guarantee rests on as a pyramid: the parameters on top, what they are computed by below, and the handling
of the data at the bottom. The blocks are its; the questions are put here in words of our own.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from sfumato.privacy.guarantee import Guarantee
from sfumato.standards.deployment import model_name
from sfumato.standards.people import People

STANDARD = "NIST SP 800-226, March 2025"
UNANSWERED = "unanswered"
HOLDER = (
    "for the holder of the data: this page says more than the release does, and is not to be handed out"
)
_WIDTH, _INDENT = 100, " " * 4


@dataclass(frozen=True)
class Answer:
    """A question with what is known; ``answer`` is None where nothing is. ``source`` says from where."""

    question: str
    answer: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        said = UNANSWERED if self.answer is None else f"{self.answer} [{self.source}]"
        return f"  {self.question}\n" + textwrap.fill(
            said, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
        )


@dataclass(frozen=True)
class Block:
    """A block of the pyramid."""

    name: str
    answers: tuple[Answer, ...]

    def __str__(self) -> str:
        return "\n".join([self.name, *map(str, self.answers)])


@dataclass(frozen=True)
class Conformance:
    """All blocks, from the top of the pyramid down.

    Parameters
    ----------
    blocks : tuple of Block
        Each with its questions and answers.
    for_release : bool
        Whether the page says no more than the release itself and people do.

    Examples
    --------
    >>> import sfumato as sf
    >>> noisy = sf.privatise(sf.synthetic.ratings_like(30, 20, 5, 400), epsilon=3)
    >>> files = sf.write_privatised(noisy, "noisy.csv")
    >>> found = sf.conformance("noisy.csv")
    >>> found.for_release, found.open[0]
    (True, 'Why these parameters, and who decided?')
    """

    blocks: tuple[Block, ...]
    for_release: bool

    @property
    def open(self) -> tuple[str, ...]:
        """The questions that are unanswered."""
        return tuple(a.question for block in self.blocks for a in block.answers if a.answer is None)

    def __str__(self) -> str:
        whole = sum(len(block.answers) for block in self.blocks)
        head = f"{STANDARD}: {whole - len(self.open)} of {whole} questions answered"
        lines = [head, *([] if self.for_release else [HOLDER])]
        return "\n\n".join(["\n".join(lines), *map(str, self.blocks)])

    def to_json(self) -> dict[str, Any]:
        """Questions and answers as plain data."""
        return {
            "standard": STANDARD,
            "for_release": self.for_release,
            **asdict(self),
            "open": list(self.open),
        }


def answered(
    guarantee: Guarantee,
    people: People,
    *,
    changes: str,
    audit: str | None = None,
    ledger: str | None = None,
) -> Conformance:
    """The page; ``changes`` says whether those to the files can be noticed.

    An audit and a ledger are of the data, and make it a page for their holder.
    """
    blocks = (
        _parameters(guarantee, people, ledger),
        _algorithms(guarantee, audit),
        _utility(guarantee, people),
        _surroundings(guarantee, people, changes),
        _collection(guarantee, people),
    )
    return Conformance(blocks, for_release=audit is None and ledger is None)


# -- blocks ---------------------------------------------------------------------------------------


def _parameters(guarantee: Guarantee, people: People, ledger: str | None) -> Block:
    odds = _told(guarantee, "odds")
    warned = "; ".join(guarantee.warnings)
    proven = "no cap on its entries is set: the method bounds what all of them add to an answer"
    bounded = proven if guarantee.proven else None
    return Block(
        "Privacy parameters and unit",
        (
            _of(guarantee, "How large are epsilon and delta, by which variant?", "promise"),
            _of(guarantee, "What is the unit of privacy?", "protects"),
            _of(guarantee, "Which data sets are neighbours?", "neighbours"),
            _of(guarantee, "Is what a unit contributes bounded?", "cap", bounded),
            Answer("What can be learnt of a unit, at most?", odds, "guarantee"),
            Answer(
                "Is the protection so weak that it has to be warned of?",
                warned or "no warning follows from the budget, the unit and its number of levels",
                "guarantee",
            ),
            _from(people, "Why these parameters, and who decided?", "justification"),
            _of(
                guarantee,
                "Is there a ledger, and what do all fits on the same data spend together?",
                "ledger",
            ),
            *(
                []
                if ledger is None
                else [Answer("What has the ledger spent by now?", ledger, "ledger file")]
            ),
            _from(people, "What else is planned with the same data?", "release_plans"),
        ),
    )


def _algorithms(guarantee: Guarantee, audit: str | None) -> Block:
    return Block(
        "Algorithms and their correctness",
        (
            _of(guarantee, "Which algorithm?", "method"),
            Answer(
                "Is it proven that it has the promised privacy?",
                dict(guarantee.said())["status"],
                "guarantee and proofs",
            ),
            _of(
                guarantee,
                "Is noise drawn exactly, or could floating-point numbers give data away?",
                "arithmetic",
            ),
            Answer(
                "Was the implementation attacked, and did the promise hold?", audit, _if(audit, "audit")
            ),
            _of(
                guarantee,
                "Were settings chosen by looking at the data, and is it paid for?",
                "tuning",
                "no setting of the fit was",
            ),
            Answer(
                "What has to be true besides?",
                "; ".join(guarantee.assumptions) or "nothing",
                "guarantee",
            ),
        ),
    )


def _utility(guarantee: Guarantee, people: People) -> Block:
    few = next((warning for warning in guarantee.warnings if "levels" in warning), None)
    proven = (
        f"all that follows the noisy answers is computed from them and public numbers, {guarantee.proof}"
    )
    after = proven if guarantee.proven else None
    return Block(
        "Utility and bias",
        (
            _from(people, "How good is what is released?", "utility"),
            Answer("Are there too few units for a good fit?", few, _if(few, "guarantee")),
            Answer("Is anybody served worse than others, by noise or by how the data came about?"),
            Answer("Is anything changed after the noise?", after, _if(after, "proofs")),
        ),
    )


def _surroundings(guarantee: Guarantee, people: People, changes: str) -> Block:
    return Block(
        "Trust, access and side channels",
        (
            Answer("Which trust model?", f"{model_name(guarantee)}: {guarantee.trust}", "guarantee"),
            _from(people, "Who may see the data or the release, and why are they trusted?", "actors"),
            _from(people, "How is access to the data controlled?", "security"),
            Answer(
                "Can data be asked interactively?",
                "no: files are handed out, and nobody asks the data through them",
                "the release",
            ),
            Answer(
                "Are times and other side channels covered?",
                "no: the guarantee covers files alone; how long a fit takes, what it prints and what "
                "memory it needs may depend on the data and are for whoever runs it",
                "docs/promise.md",
            ),
            Answer("Can a change to the release be noticed?", changes, "the release"),
        ),
    )


def _collection(guarantee: Guarantee, people: People) -> Block:
    public = "; ".join(each for each in guarantee.assumptions if "public" in each)
    return Block(
        "Data collection and exposure",
        (
            _from(people, "How were the data collected, and with whose consent?", "collection"),
            _from(people, "What was done with them before the fit?", "preparation"),
            Answer("What of the data is taken to be public?", public or "nothing", "guarantee"),
            _of(
                guarantee,
                "What stays with owners and is not released?",
                "kept",
                "nothing: all is released",
            ),
            _from(people, "Whom can somebody in the data ask?", "contact"),
        ),
    )


def _told(guarantee: Guarantee, title: str) -> str | None:
    return "; ".join(text for found, text in guarantee.said() if found == title) or None


def _of(guarantee: Guarantee, question: str, title: str, otherwise: str | None = None) -> Answer:
    answer = _told(guarantee, title) or otherwise
    return Answer(question, answer, _if(answer, "guarantee"))


def _from(people: People, question: str, name: str) -> Answer:
    answer = people.get(name)
    return Answer(question, answer, _if(answer, "people"))


def _if(answer: str | None, source: str) -> str | None:
    return None if answer is None else source
