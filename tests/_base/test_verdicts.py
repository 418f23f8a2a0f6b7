"""Verdicts from events: every end of a process, alone and beside others, and the edges of the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay._base.outside_memory import NOTHING, OutsideMemory
from forebay._base.verdicts import DeviceEvents, Ending, How, ProcessEvents, Verdict, exit_status, judge

GIB, MIB = 1 << 30, 1 << 20
FINISHED = Ending(How.FINISHED)
KEY_ERROR = Ending(How.EXCEPTION, "KeyError: 1", "train.py:3")
OOM = Ending(How.EXCEPTION, "CUDA out of memory. Tried", "train.py:4", True, True)
WHILE_HANDLING = Ending(How.EXCEPTION, "AttributeError: x", "train.py:5", False, True)
STATUS = Ending(How.STATUS, "exit status 1")


def device(reserved=GIB, *, ooms=0, idle=False, capacity=24 * GIB, index=0, outside=NOTHING):
    return DeviceEvents(index, capacity, reserved, reserved, ooms, 30 * GIB * (ooms > 0), idle, outside=outside)


def process(ending=FINISHED, *devices, is_main=True, **rest):
    return ProcessEvents(7 if is_main else 8, ending, devices, is_main=is_main, **rest)


def verdict(*processes, together=None):
    devices = [each for found in processes for each in found.devices] if together is None else together
    return judge(processes, devices).verdict


ENDS = {
    "finished": (FINISHED, device(), Verdict.FITS),
    "exception": (KEY_ERROR, device(), Verdict.DID_NOT_FINISH),
    "status": (STATUS, device(), Verdict.DID_NOT_FINISH),
    "signal": (Ending(How.SIGNAL, "SIGKILL"), device(), Verdict.DID_NOT_FINISH),
    "lost": (Ending(How.LOST), device(), Verdict.DID_NOT_FINISH),
    "terminated": (Ending(How.TERMINATED, "SIGTERM"), device(), Verdict.DID_NOT_FINISH),
    "replaced": (Ending(How.REPLACED), device(), Verdict.DID_NOT_FINISH),
    "time limit": (Ending(How.TIME_LIMIT), device(), Verdict.DID_NOT_FINISH),
    "failed without memory": (KEY_ERROR, device(0), Verdict.DID_NOT_FINISH),
    "no memory": (FINISHED, device(0), Verdict.NO_DEVICE_MEMORY),
    "ran out": (OOM, device(ooms=1, idle=True), Verdict.DOES_NOT_FIT),
    "ran out at once": (OOM, device(0, ooms=1, idle=True), Verdict.DOES_NOT_FIT),
    "ran out, though memory was freed since": (OOM, device(ooms=1), Verdict.DOES_NOT_FIT),
    "gave up with a status": (STATUS, device(ooms=3, idle=True), Verdict.DOES_NOT_FIT),
    "went on, and failed later with a status": (STATUS, device(ooms=3), Verdict.DID_NOT_FINISH),
    "failed while it handled the error": (WHILE_HANDLING, device(ooms=1, idle=True), Verdict.DOES_NOT_FIT),
    "failed in a second try": (WHILE_HANDLING, device(ooms=1), Verdict.DID_NOT_FINISH),
    "failed for another reason after a caught error": (KEY_ERROR, device(ooms=1, idle=True), Verdict.DID_NOT_FINISH),
    "killed after a caught error": (Ending(How.SIGNAL), device(ooms=1, idle=True), Verdict.DID_NOT_FINISH),
    "caught": (FINISHED, device(ooms=2), Verdict.FITS_AFTER_ERRORS),
    "caught, and allocated nothing since": (FINISHED, device(ooms=1, idle=True), Verdict.FITS_AFTER_ERRORS),
    "caught, then nearly full": (FINISHED, device(24 * GIB, ooms=1), Verdict.FITS_AFTER_ERRORS),
    "full, with nothing outside": (FINISHED, device(24 * GIB), Verdict.FITS),
    "full": (FINISHED, device(24 * GIB, outside=OutsideMemory(0, 0, 1)), Verdict.TIGHT),
}


@pytest.mark.parametrize(("ending", "used", "expected"), ENDS.values(), ids=ENDS)
def test_end_and_figures_of_one_process_decide(ending, used, expected):
    assert verdict(process(ending, used)) is expected


OTHERS = {
    "finished": (process(FINISHED, device(), is_main=False), Verdict.FITS),
    "exception": (process(KEY_ERROR, is_main=False), Verdict.DID_NOT_FINISH),
    "out of memory": (process(OOM, device(ooms=1), is_main=False), Verdict.DOES_NOT_FIT),
    "worker of a pool": (process(Ending(How.TERMINATED), device(), is_main=False), Verdict.FITS),
    "killed": (process(Ending(How.LOST), device(), is_main=False), Verdict.DID_NOT_FINISH),
    "killed without memory": (process(Ending(How.LOST), is_main=False), Verdict.NO_DEVICE_MEMORY),
    "replaced": (process(Ending(How.REPLACED), device(), is_main=False), Verdict.FITS),
    "unread value": (process(FINISHED, device(), is_main=False, unread=("a.py:1",)), Verdict.DID_NOT_FINISH),
}


@pytest.mark.parametrize(("other", "expected"), OTHERS.values(), ids=OTHERS)
def test_processes_that_the_program_started_count(other, expected):
    assert verdict(process(), other) is expected


def test_memory_that_ran_out_in_a_process_explains_the_end_of_its_parent():
    child = process(OOM, device(ooms=1), is_main=False)
    found = judge([process(Ending(How.EXCEPTION, "ProcessRaisedException")), child], child.devices)
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert found.reasons == ("A request for 30.00 GiB of cuda:0 ran out of memory in process 8, at train.py:4.",)


def test_uncaught_exception_of_a_thread_counts_although_the_program_goes_on():
    assert verdict(process(FINISHED, device(ooms=1), failures=(OOM,))) is Verdict.DOES_NOT_FIT
    found = judge([process(FINISHED, device(), failures=(KEY_ERROR,))], [device()])
    assert (found.verdict, found.message, found.line) == (Verdict.DID_NOT_FINISH, "KeyError: 1", "train.py:3")


def test_value_that_is_not_computed_counts_although_the_error_is_caught():
    found = judge([process(FINISHED, device(), unread=("train.py:9: x.item()",))], [device()])
    assert (found.verdict, found.line) == (Verdict.DID_NOT_FINISH, "train.py:9: x.item()")


def test_processes_that_share_a_device_do_not_fit_if_their_sum_does_not():
    both = process(FINISHED, device(15 * GIB)), process(FINISHED, device(15 * GIB), is_main=False)
    found = judge(both, [device(30 * GIB)])
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert found.reasons == (
        "The program reserves 30.00 GiB in PyTorch's allocator: more than the 24.00 GiB of cuda:0.",
    )


def test_reason_names_the_process():
    found = judge([process(), process(Ending(How.LOST), device(), is_main=False)], [device()])
    assert (found.message, found.reasons) == (
        "Process 8 was killed, or crashed",
        ("Process 8 was killed, or crashed.",),
    )
    found = judge([process(KEY_ERROR)], [])
    reason = "The program ended with an exception: KeyError: 1, at train.py:3."
    assert (found.message, found.reasons, found.line) == ("KeyError: 1", (reason,), "train.py:3")
    found = judge([process(STATUS, device(ooms=1, idle=True))], [])
    before = "Before that, a request for 30.00 GiB of cuda:0 ran out of memory."
    assert found.reasons == ("The program failed: exit status 1.", before)


def test_text_counts_caught_errors_and_names_the_last_size():
    found = judge([process()], [device(ooms=1)])
    assert found.text == "fits after 1 caught out-of-memory error"
    found = judge([process()], [device(ooms=1_200, idle=True), device(index=1)])
    assert found.text == "fits after 1,200 caught out-of-memory errors"
    last = "The last request that failed was for 30.00 GiB."
    assert found.reasons == (last, "Nothing was allocated on the device after it.")


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (3 * MIB, Verdict.FITS),
        (3 * MIB - 1, Verdict.TIGHT),
        (MIB, Verdict.TIGHT),
        (MIB - 1, Verdict.DOES_NOT_FIT),
    ],
)
def test_range_outside_the_allocator_decides(free, expected):
    outside = OutsideMemory(MIB, 2 * MIB, 3 * MIB)
    used = device(24 * GIB - free, outside=outside)
    found = judge([process(FINISHED, used)], [device(0, outside=outside), used])
    assert found.verdict is expected
    assert used.needed[:3] == tuple(24 * GIB - free + each * MIB for each in (1, 2, 3))


@pytest.mark.parametrize(("most", "expected"), [(9 * MIB, Verdict.FITS), (10 * MIB, Verdict.TIGHT)])
def test_workspaces_of_cudnn_decide_with_what_is_outside(most, expected):
    outside = OutsideMemory(MIB, 2 * MIB, 3 * MIB)
    used = replace(device(24 * GIB - 12 * MIB, outside=outside), workspaces=most)
    found = judge([process(FINISHED, used)], [used])
    assert found.verdict is expected
    assert used.needed[:3] == (24 * GIB - 11 * MIB, 24 * GIB - 10 * MIB + most // 2, 24 * GIB - 9 * MIB + most)
    if expected is Verdict.TIGHT:
        assert found.reasons[0].startswith(
            "12.00 MiB of cuda:0 were never reserved; cuDNN's workspaces may take up to 10.00 MiB of them, and 2 MiB"
        )


def test_reasons_name_what_is_outside_the_allocator():
    outside = OutsideMemory(MIB, 2 * MIB, 3 * MIB)
    used = device(24 * GIB - 2 * MIB, outside=outside)
    reason = "2.00 MiB of cuda:0 were never reserved; 2 MiB (1 to 3) are outside the allocator, and decide."
    assert judge([process(FINISHED, used)], [used]).reasons == (reason,)
    used = device(24 * GIB, outside=outside)
    reason = (
        "The program reserves 24.00 GiB in PyTorch's allocator and 1.00 MiB at least are outside of it: more than the "
        "24.00 GiB of cuda:0."
    )
    assert judge([process(FINISHED, used)], [used]).reasons == (reason,)


def test_status_of_several_cards_is_that_of_the_worst():
    by_weight = [Verdict.FITS, Verdict.TIGHT, Verdict.DOES_NOT_FIT, Verdict.DID_NOT_FINISH]
    assert [each.status for each in by_weight] == [0, 3, 1, 4]
    for count in range(1, 5):
        assert exit_status(by_weight[:count]) == exit_status(reversed(by_weight[:count])) == by_weight[count - 1].status
    assert exit_status([Verdict.NO_DEVICE_MEMORY, Verdict.DOES_NOT_FIT]) == 4
    assert exit_status([Verdict.FITS_AFTER_ERRORS]) == 0
    assert exit_status([Verdict.FITS_WITH_OTHER_SETTINGS]) == 1
    assert {each.status for each in Verdict} == {0, 1, 3, 4}


def test_process_without_emulated_devices_is_named_and_not_counted():
    unseen = [ProcessEvents(each, FINISHED, command="python -I x.py", is_emulated=False) for each in (8, 9)]
    found = judge([process(FINISHED, device()), unseen[0]], [device()])
    assert found.verdict is Verdict.DID_NOT_FINISH
    text = "process 8 (python -I x.py) used PyTorch without emulated devices: its memory is not counted"
    assert found.message == text
    assert "8 (python -I x.py) and 1 other process used" in judge([process(), *unseen], []).message
    assert verdict(process(FINISHED, device(25 * GIB)), *unseen) is Verdict.DOES_NOT_FIT  # with others even less
    assert judge([process(KEY_ERROR, device()), *unseen], [device()]).message.startswith("KeyError")
