"""What is known of a chip: its thresholds, and what nobody has measured on it."""

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from topoc.dsl.plain import Plain
from topoc.dsl.targets.limits import Limit

Device = Literal["phone", "mac", "any"]


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class Profile(Plain):
    """One chip, or the strictest of all where a target names none.

    `borrowed` says whose figures stand in for missing ones. `unknown` are sentences on what no
    source tells of this chip; `topoc lint` prints them below its findings.
    """

    name: str
    device: Device
    limits: Mapping[str, Limit] = field(eq=False, repr=False)
    borrowed: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def phone(self) -> bool:
        """Whether a package must be fit for a phone: where no chip is named, it must."""
        return self.device != "mac"

    def limit(self, name: str) -> Limit:
        """The threshold of a name; every profile has all of them."""
        return self.limits[name]
