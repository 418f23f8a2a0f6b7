"""Records of the use of emulated devices by the processes of a program, which survive any end, and their sum.

# Note [Records survive any end]
A verdict needs what every process of a program did, also of one that ended by os._exit,
os.exec*, a signal, or without a word, and of processes that shell scripts started. Each process whose PyTorch uses
emulated devices therefore has two files in the folder that the environment variable FOREBAY_RECORDS names. One is
mapped into memory (`live_record`): peaks and refused requests are stores into it, which the system keeps when the
process dies, and the C library writes the exit status (`_process_end`). The other is JSON (`recorder`), written when
something happens that needs words (an exception, a value that could not be read), and at the end with what held the
peaks. `reading` reads both, and `program_use` adds processes up. Rejected: one
file that is written at exit, which these ends skip.
Test: tests/interop/torch/processes/test_recorder.py::test_end_of_a_program_is_known_with_its_peak
"""

from forebay.interop.torch.processes.program_use import ProgramDevice, ProgramUse, program_use
from forebay.interop.torch.processes.reading import ProcessRecord, read_records

__all__ = ["ProcessRecord", "ProgramDevice", "ProgramUse", "program_use", "read_records"]
