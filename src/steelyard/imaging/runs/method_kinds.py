"""The kinds of methods: their names, and what each does in a few words.

| name | the weights |
| --- | --- |
| `equal` | the same for every domain |
| `fixed-10-90` | these percentages, one per domain, in the order of the domains |
| `greedy-25` | votes for the domain whose step serves all domains best; the last 25 votes count |
| `conservative-25` | votes for the domain whose step serves them least; the last 25 votes count |
| `shift-greedy`, `shift-conservative` | moved by the relative difference of two hypothetical losses |
| `group-dro`, `dwa`, `uw`, `famo` | GroupDRO, dynamic weight average, uncertainty weighting, FAMO |
| `evidence` | moved by the sum of what each domain's steps were worth to all, once it is clear; recommended |
| `log-loss` | the weights of minimising the sum of the losses' logarithms (IMTL-L) |
| `dual-balancing` | all domains' gradients get the same norm (DB-MTL) |
| `flair-only` | one domain alone is trained on |
"""

from typing import Literal

VoteKind = Literal["greedy", "conservative"]
ShiftKind = Literal["shift-greedy", "shift-conservative"]
PlainKind = Literal["equal", "group-dro", "dwa", "uw", "famo", "evidence", "log-loss", "dual-balancing"]
Kind = VoteKind | ShiftKind | PlainKind | Literal["fixed", "only", "unknown"]
MetaTest = Literal["eval", "batch"]

FORMS = (
    "equal, fixed-10-90 (percentages, one per domain), greedy-25, conservative-25 (any window), shift-greedy, "
    "shift-conservative, group-dro, dwa, uw, famo, evidence, log-loss, dual-balancing, flair-only, t1-only; methods "
    "that vote also with +first-order, +eval, +batch or +every-4 (any number) after their name"
)
"""The names that a user may write, for messages and help texts."""

EXAMPLES = (
    *("equal", "fixed-10-90", "greedy-25", "conservative-25", "shift-greedy", "shift-conservative", "group-dro", "dwa"),
    *("uw", "famo", "evidence", "log-loss", "dual-balancing", "flair-only", "t1-only"),
    *("F50-T50", "F10-T90", "Ours-G-25", "Ours-C-25", "Simple-G", "Simple-C"),
)
"""A name of every method, the paper's included, to find what a user may have meant."""

MODIFIERS = ("first-order", "eval", "batch", "every-4")
"""What may follow the name of a method that votes, after a plus."""

STATISTICS: dict[MetaTest, str] = {"eval": "running", "batch": "batch"}
"""The statistics of batch normalisation that a hypothetical step is judged on."""

DESCRIPTIONS: dict[Kind, str] = {
    "equal": "equal weights",
    "shift-greedy": "weights moved towards the domain with the lower hypothetical loss (the paper's Simple-G)",
    "shift-conservative": "weights moved towards the domain with the higher hypothetical loss (the paper's Simple-C)",
    "group-dro": "GroupDRO: more weight for the domain with the higher loss",
    "dwa": "dynamic weight average: more weight for the domain whose loss falls more slowly",
    "uw": "uncertainty weighting: weights learned with the network",
    "famo": "FAMO: weights that let all losses fall alike",
    "evidence": "shares of the update that move once the sum of what was measured says clearly that they should",
    "log-loss": "log loss (IMTL-L): a loss that falls by a tenth counts the same for every domain",
    "dual-balancing": "dual balancing (DB-MTL): all domains' gradients get the same norm",
}
"""What the methods without numbers in their names do."""
