"""Units, systems and chips, and the thresholds that hold on them."""

from topoc.dsl.targets.names import CHIPS, DEPLOYMENTS

__all__ = ["CHIPS", "DEPLOYMENTS"]
