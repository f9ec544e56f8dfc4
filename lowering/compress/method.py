"""What decides on compressed weights beside their numbers and their recipe.

It stands apart from those who compress, so that what is kept can be found without them.
"""

VERSION = 4  # of the method: results of another one are not reused
GROUPS = 256  # of a batch
AGAIN = 32  # groups of a second look, whose histograms are larger
WEIGHTS = 1 << 24  # of a batch of several groups: they are held in memory, at 2 bytes each
FEEDBACK_BITS = 4  # the most that error feedback helps

METHOD = (VERSION, GROUPS, WEIGHTS, AGAIN)
