"""Backend for Apple's GPUs through Metal and PyObjC. It has not run on hardware yet, only on tests/softmetal.

Work that Metal cannot do runs on the host, in the order of its queue: Metal has no doubles, and no buffers over
pageable memory. On Apple silicon both use the same memory.
"""
