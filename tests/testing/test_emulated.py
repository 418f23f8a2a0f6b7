"""Tests of the fixture `emulated_cuda` in a user's project, whose conftest.py only loads the plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def project(tmp_path):
    """Return a function that runs a test file in a new project and returns pytest's exit status and output."""

    def run(source: str, *options: str) -> tuple[int, str]:
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["forebay.testing.plugin"]\n')
        (tmp_path / "test_it.py").write_text("import forebay\nimport pytest\n" + dedent(source))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("FOREBAY_EMULATE", None)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


def test_devices_exist_only_during_the_test(project):
    status, output = project("""
        import forebay.cuda as cuda

        def test_no_device_before_the_fixture():
            assert not cuda.is_available()

        def test_one(emulated_cuda):
            assert not cuda.is_initialized()
            assert cuda.get_device_name() == "NVIDIA H200 (emulated)"
            assert forebay.zeros(3, device="cuda").tolist() == [0, 0, 0]

        def test_devices_with_other_parameters(emulated_cuda):
            emulated_cuda(count=2, profile="a100", memory="1GiB")
            assert cuda.device_count() == 2
            assert cuda.get_device_capability(1) == (8, 0)
            assert forebay.memory.mem_get_info("cuda:1")[1] == 1 << 30
            with emulated_cuda(count=3):
                assert cuda.device_count() == 3
            assert not cuda.is_available()

        @pytest.mark.parametrize("emulated_cuda", [{"count": 2}, {"count": 3, "profile": "t4"}], indirect=True)
        def test_from_outside(emulated_cuda):
            assert cuda.device_count() in (2, 3)

        def test_invalid_profile(emulated_cuda):
            with pytest.raises(ValueError, match="there is no profile"):
                emulated_cuda(profile="banana")

        def test_no_device_after_the_fixture():
            assert not cuda.is_available()
    """)
    assert status == 0, output
    assert "7 passed" in output


LEAKS = """
    kept = []
    before = [*forebay.cuda._queued_calls]  # queued by forebay.cuda itself

    def make_tensor():
        return forebay.zeros(1000, device="cuda:0")

    def test_leak(emulated_cuda):
        kept.append(make_tensor())

    def test_no_leak(emulated_cuda):
        make_tensor()

    def test_fails(emulated_cuda):
        tensor = make_tensor()
        assert tensor is None

    def test_unused(emulated_cuda):
        assert not forebay.cuda.is_initialized()
        assert forebay.cuda._queued_calls == before
"""


def test_leaks_are_reported_with_the_option(project):
    source = LEAKS.replace("import forebay\n", "") + "    import forebay.cuda\n"
    source = source.replace("    kept = []", "    import forebay.cuda\n    kept = []", 1)
    status, output = project(source)
    assert (status, output.count("leaves device memory in use")) == (1, 0), output
    assert "1 failed, 3 passed" in output
    status, output = project(source.replace("assert forebay.cuda._queued_calls == before", "pass"), "--forebay-leaks")
    assert status == 1
    assert "1 failed, 3 passed, 1 error" in output
    assert "ERROR test_it.py::test_leak - Failed: the test leaves device memory in use:" in output
    assert "cuda:0\n" in output
    assert "3.91 KiB in 1 block: " in output
    assert "test_it.py:9 make_tensor" in output


def test_fixture_removes_its_queued_calls(project):
    status, output = project(
        """
        import forebay.cuda
        before = [*forebay.cuda._queued_calls]
        @pytest.mark.parametrize("time", range(3))
        def test_it(emulated_cuda, time):
            assert len(forebay.cuda._queued_calls) == len(before) + 1
        def test_no_call_is_left():
            assert forebay.cuda._queued_calls == before
        """,
        "--forebay-leaks",
    )
    assert status == 0, output


@pytest.mark.parametrize("options", [("--forebay-guard",), ("--forebay-guard", "-p", "no:faulthandler")], ids=str)
def test_guard_reports_the_line_despite_capture(project, options):
    source = """
        def test_touch(emulated_cuda):
            tensor = forebay.zeros(3, device="cuda")
            assert tensor.tolist() == [0, 0, 0]
            tensor.raw_array().sum()
    """
    status, output = project(source)
    assert status == 0, output
    status, output = project(source, *options)
    assert status < 0
    assert "forebay: cuda:0: the host touched device memory outside queued work" in output
    assert 'test_it.py", line 7 in test_touch' in output


def test_guard_reports_to_the_terminal_during_the_fixture_only(project):
    """The guard's descriptor bypasses the capture, stays the same for a second emulation, and is closed."""
    status, output = project(
        """
        import os
        from forebay.backends.emulated.memory_budget import guard_reporter
        before, used = guard_reporter.descriptor, []

        @pytest.mark.parametrize("guard", [None, True, False])
        def test_it(emulated_cuda, guard):
            assert forebay.zeros(3, device="cuda").tolist() == [0, 0, 0]
            used.append(guard_reporter.descriptor)
            assert used[-1] != before
            assert not os.path.sameopenfile(used[-1], 2)
            emulated_cuda(guard=guard)
            assert forebay.zeros(3, device="cuda").tolist() == [0, 0, 0]
            assert guard_reporter.descriptor == used[-1]

        def test_end():
            assert guard_reporter.descriptor == before
            assert len(used) == 3
            for descriptor in {*used} - {before}:
                with pytest.raises(OSError):
                    os.fstat(descriptor)
        """,
        "--forebay-guard",
    )
    assert status == 0, output


def test_plugin_loaded_late_works_without_options(project, tmp_path):
    status, output = project("""
        pytest_plugins = ["forebay.testing.plugin"]
        def test_one(emulated_cuda):
            assert forebay.device_count("cuda") == 1
    """, "--noconftest")  # fmt: skip
    assert status == 0, output
