"""The cell magic `%%memory` in a real notebook, which one kernel executes once."""

from __future__ import annotations

import re
import sys

import pytest
from support.markup import check_markup

pytest.importorskip("ipykernel", reason="ipykernel and nbclient execute the notebook")
pytest.importorskip("nbclient", reason="ipykernel and nbclient execute the notebook")

STATE = "(allocator.recording, numpy.installed(), forebay.memory.mem_get_info('cpu')[1] == capacity)"
CELLS = {
    "load": """
%load_ext forebay
import asyncio, signal
import numpy as np
import forebay
from forebay.interop import numpy
from forebay.runtime.devices.current import opened_for
allocator, capacity = opened_for("cpu").allocator, forebay.memory.mem_get_info("cpu")[1]
""",
    "function": "def make():\n    return np.ones(1 << 20)",
    "timeline": "%%memory\nkept = [make() for _ in range(3)]\ndel kept[0]\nother = np.ones(1 << 19)\nother.sum()",
    "state after timeline": STATE,
    "raises": "%%memory --sites 1\nlast = make()\n1 / 0",
    "state after raises": STATE,
    "interrupted": "%%memory\nlast = make()\nsignal.raise_signal(signal.SIGINT)\nnever = 1",
    "state after interrupted": STATE,
    "nested": "%%memory\nget_ipython().run_cell_magic('memory', '', 'inner = make()')\nouter = np.ones(1 << 19)",
    "state after nested": STATE,
    "nothing": "%%memory\npass",
    "semicolon": "%%memory\n1;",
    "magics inside": "%%memory\n%cd -q .",
    "await": "%%memory\nawait asyncio.sleep(0)",
    "async for": "%%memory\n[x async for x in y]",
    "syntax": "%%memory\n1 +* 2",
    "unknown device": "%%memory --device tpu\n1",
    "absent device": "%%memory --device cuda:0\n1",
    "unknown option": "%%memory --rows 3\n1",
    "bad number": "%%memory --sites -1\n1",
    "unbalanced": '%%memory --device "cpu\n1',
    "state after errors": STATE,
    "recording": "forebay.memory.record_history(device='cpu')",
    "during recording": "%%memory\nduring = make()",
    "state during recording": STATE,
    "stop": "forebay.memory.record_history(None, device='cpu')",
    "emulated": "emulation = forebay.emulate('cuda', memory='64MiB')",
    "on emulated": "%%memory --device cuda:0\ntensor = forebay.ones(1 << 20, device='cuda')\ntensor",
    "display": "forebay.device('cuda:0'), tensor\ntensor",
    "statistics": "forebay.memory.memory_stats('cuda:0')",
    "out of memory": "%%memory --device cuda:0\nforebay.empty(1 << 30, device='cuda')",
    "unload": "%reload_ext forebay\n%unload_ext forebay",
    "unloaded": "%%memory\n1",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Return the outputs of each cell, and its number."""
    import nbformat
    from ipykernel.kernelspec import write_kernel_spec
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("jupyter")
    write_kernel_spec(folder / "kernels/forebay")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder))
        patch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.strip("\n")) for c in CELLS.values()])
        NotebookClient(notebook, timeout=60, kernel_name="forebay", allow_errors=True).execute()
    return {name: (cell.execution_count, cell.outputs) for name, cell in zip(CELLS, notebook.cells, strict=True)}


@pytest.fixture
def shown(outputs):
    """Return a function that returns the reports, the result, the printed text and the error of a cell."""

    def find(name):
        reports = [out.data for out in outputs[name][1] if out.output_type == "display_data"]
        results = [out.data for out in outputs[name][1] if out.output_type == "execute_result"]
        text = "".join(out.text for out in outputs[name][1] if out.output_type == "stream")
        errors = [out for out in outputs[name][1] if out.output_type == "error"]
        for data in reports + results:
            check_markup(data.get("text/html", ""))
        return reports, results[0] if results else None, text, errors[0] if errors else None

    return find


def test_report_has_timeline_peak_and_sites(outputs, shown):
    [report], result, text, error = shown("timeline")
    number, function = outputs["timeline"][0], outputs["function"][0]
    assert "<svg" in report["text/html"]
    assert "above the start" in report["text/html"]
    assert "20.00 MiB in 3 allocations of the cell" in report["text/plain"]
    assert re.search(rf"16\.00 MiB\s+80\.0%\s+cell \[{function}\]:2 make\n", report["text/plain"])
    assert re.search(rf"4\.00 MiB\s+20\.0%\s+cell \[{number}\]:4$", report["text/plain"])
    assert f"cell [{number}]:4</td>" in report["text/html"]
    assert "524288.0" in result["text/plain"]
    assert (text, error) == ("", None)


@pytest.mark.parametrize("after", ["timeline", "raises", "interrupted", "nested", "errors"])
def test_everything_is_restored(shown, after):
    assert shown(f"state after {after}")[1]["text/plain"] == "(False, None, True)"


def test_exception_propagates_after_the_report(outputs, shown):
    [report], _, _, error = shown("raises")
    assert "8.00 MiB in 1 allocation" in report["text/plain"]
    assert error.ename == "ZeroDivisionError"
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert f"Cell In[{outputs['raises'][0]}], line 3" in traceback
    assert "forebay" not in traceback


def test_interrupted_cell_shows_its_report(shown):
    [report], _, _, error = shown("interrupted")
    assert "1 allocation" in report["text/plain"]
    assert error.ename == "KeyboardInterrupt"


def test_magics_nest(shown):
    inner, outer = (report["text/plain"] for report in shown("nested")[0])
    assert "8.00 MiB in 1 allocation of" in inner
    assert "12.00 MiB in 2 allocations of" in outer


def test_cell_without_allocations(shown):
    [report], result, text, error = shown("nothing")
    assert "allocated nothing on cpu" in report["text/html"]
    assert (result, text, error) == (None, "", None)


def test_semicolon_hides_the_value(shown):
    assert shown("semicolon")[1] is None


def test_magics_inside_the_cell(shown):
    assert shown("magics inside")[3] is None


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("await", "a cell with top-level await cannot be measured"),
        ("async for", "a cell with top-level await cannot be measured"),
        ("unknown device", "cannot measure the device 'tpu': Expected one of"),
        ("absent device", "cannot measure the device 'cuda:0': "),
        ("unknown option", "unrecognized arguments: --rows 3"),
        ("bad number", "'-1' is not a number of rows"),
        ("unbalanced", "No closing quotation"),
    ],
)
def test_usage_error_is_one_line(shown, cell, words):
    reports, result, text, error = shown(cell)
    assert text.startswith("UsageError: ")
    assert words in text
    assert len(text.strip().splitlines()) == 1
    assert (reports, result, error) == ([], None, None)


def test_syntax_error_is_the_cells(outputs, shown):
    reports, _, _, error = shown("syntax")
    assert error.ename == "SyntaxError"
    assert "1 +* 2" in "\n".join(error.traceback)
    assert reports == []


def test_recording_of_the_user_continues(shown):
    assert "8.00 MiB in 1 allocation" in shown("during recording")[0][0]["text/plain"]
    assert shown("state during recording")[1]["text/plain"] == "(True, None, True)"


def test_emulated_device(shown):
    [report], result, _, _ = shown("on emulated")
    assert "4.00 MiB in 1 allocation" in report["text/plain"]
    assert "forebay.float32" in result["text/html"]


def test_objects_are_displayed(shown):
    assert "tensor([1., 1., 1.,  ..., 1., 1., 1.], device=&#x27;cuda:0&#x27;)" in shown("display")[1]["text/html"]
    statistics = shown("statistics")[1]
    assert statistics["text/plain"].startswith("{'active.all.allocated': 1,\n")
    assert "allocated_bytes.all" in statistics["text/html"]


def test_out_of_memory_in_the_cell(shown):
    [report], _, _, error = shown("out of memory")
    assert error.ename.endswith("OutOfMemory")
    assert "0 B above the start" in report["text/plain"]


def test_unloading_removes_the_magic(shown):
    assert "`%%memory` not found" in shown("unloaded")[2]


def test_import_does_not_load_ipython():
    import forebay

    assert callable(forebay.load_ipython_extension)
    assert callable(forebay.unload_ipython_extension)
