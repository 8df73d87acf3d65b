"""Is a data set here, and is it the published one?"""

from dataclasses import dataclass

from fedstrata.clients import pair
from fedstrata.data.download import checksum, missing
from fedstrata.data.examples import Examples
from fedstrata.data.public import PUBLIC
from fedstrata.data.sources import SOURCES
from fedstrata.data.store import root
from fedstrata.errors import DataError

EXPECTED = {
    "mnist": (60_000, 10_000), "fashion_mnist": (60_000, 10_000), "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000), "tiny_imagenet": (100_000, 10_000), "uci_har": (7_352, 2_947),
    "ag_news": (120_000, 7_600), "sogou_news": (450_000, 60_000), "amazon": (6_400, 1_600),
}  # fmt: skip
"""Examples to train on and to test on."""


@dataclass(frozen=True)
class Checked:
    """What was found.

    "published": its files have the publisher's checksums; "complete": as many examples as published, no checksums to
    compare; "readable", but not all that is published; "absent"; "broken".
    """

    state: str
    said: str

    @property
    def usable(self) -> bool:
        """Whether experiments can use it."""
        return self.state in ("published", "complete", "readable")


def check_files(name: str) -> Checked:
    """Compare the files with the publisher's checksums, and what is in them with what should be."""
    source = SOURCES[name]
    if lacking := missing(source):
        return Checked("absent", f"{len(lacking)} of {len(source.files)} files are not in {root()}")
    sums = {f.path: f.md5 for f in source.files if f.md5 is not None}
    changed = [path for path, known in sums.items() if checksum(root() / path) != known]
    try:
        data = PUBLIC[name]()
        for examples, part in ((data.train, "training"), (data.test, "test")):
            _check_examples(examples, data.classes, f"the {part} set of {name}")
    except DataError as e:
        return Checked("broken", str(e))
    counts = len(data.train[1]), len(data.test[1])
    said = f"{counts[0]:,} + {counts[1]:,} examples of {data.classes} classes"
    if changed or counts != EXPECTED[name]:
        why = [f"{p} has another checksum" for p in changed]
        why += [f"{EXPECTED[name][0]:,} + {EXPECTED[name][1]:,} are published"] if counts != EXPECTED[name] else []
        return Checked("readable", f"{said}; {', '.join(why)}")
    return Checked("published", said) if sums else Checked("complete", f"{said}; its publisher gives no checksums")


def _check_examples(examples: Examples, classes: int, who: str) -> None:
    """As many labels as examples, all of them classes, and numbers that are finite."""
    _, y = pair(examples, who)
    if not len(y) or int(y.max()) >= classes:
        found = f"has the label {int(y.max())}" if len(y) else "is empty"
        raise DataError(f"{who} {found}, but there are {classes} classes, counted from 0")
