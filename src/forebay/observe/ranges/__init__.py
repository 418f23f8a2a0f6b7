"""Named ranges of time that a program marks, and the tools that observe them.

NVTX is the usual tool: if its package is installed (the extra `nvtx`) and a profiler is attached, NVTX is notified of
every range. `recorded` needs no package. Without any tool, a range has no number and no depth, as in NVTX. A memory
history with annotations (`forebay.memory.record_history`) includes the nested ranges.
"""

from forebay.observe.ranges.range import Range, Tool
from forebay.observe.ranges.ranges import attach, attached, detach, end, mark, pop, push, recorded, start

__all__ = ["Range", "Tool", "attach", "attached", "detach", "end", "mark", "pop", "push", "recorded", "start"]
