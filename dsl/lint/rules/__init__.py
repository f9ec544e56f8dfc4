"""Every rule, in the order in which findings are gathered: what can't be, then what won't run."""

from topoc.dsl.lint.rule import Rule
from topoc.dsl.lint.rules.chunk.too_many_layers import TooManyLayers
from topoc.dsl.lint.rules.expect.breach import Breach
from topoc.dsl.lint.rules.features.dead_input import DeadInput
from topoc.dsl.lint.rules.kv.batch_over_window import BatchOverWindow
from topoc.dsl.lint.rules.kv.donor_forgets import DonorForgets
from topoc.dsl.lint.rules.kv.layouts_disagree import LayoutsDisagree
from topoc.dsl.lint.rules.kv.no_own_weights import NoOwnWeights
from topoc.dsl.lint.rules.kv.read_before_produce import ReadBeforeProduce
from topoc.dsl.lint.rules.kv.share_across_geometry import ShareAcrossGeometry
from topoc.dsl.lint.rules.kv.share_without_owner import ShareWithoutOwner
from topoc.dsl.lint.rules.kv.shares_itself import SharesItself
from topoc.dsl.lint.rules.kv.split_ring import SplitRing
from topoc.dsl.lint.rules.kv.tentative_commit import TentativeCommit
from topoc.dsl.lint.rules.kv.write_unfit_for_store import WriteUnfitForStore
from topoc.dsl.lint.rules.ledger.revived_verdict import RevivedVerdict
from topoc.dsl.lint.rules.ledger.stale_verdict import StaleVerdict
from topoc.dsl.lint.rules.lossy.narrowed_attention import NarrowedAttention
from topoc.dsl.lint.rules.lossy.shared_kv import SharedKv
from topoc.dsl.lint.rules.lossy.widened_attention import WidenedAttention
from topoc.dsl.lint.rules.state.update import Update

ALL_RULES: tuple[type[Rule], ...] = (
    # Who owns what; the later rules take it for granted.
    *(SharesItself, ShareWithoutOwner, ShareAcrossGeometry, NoOwnWeights),
    # What is kept, for whom, and when.
    *(DonorForgets, ReadBeforeProduce, WriteUnfitForStore),
    # Calls of several tokens.
    *(TentativeCommit, BatchOverWindow, SplitRing, LayoutsDisagree),
    # The author's own budgets.
    Breach,
    # What the Neural Engine takes.
    *(TooManyLayers, Update),
    # What is there for a host alone.
    DeadInput,
    # What differs from the checkpoint, and what was tried before.
    *(NarrowedAttention, WidenedAttention, SharedKv, RevivedVerdict, StaleVerdict),
)

__all__ = ["ALL_RULES"]
