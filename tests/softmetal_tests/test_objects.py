"""Objects behave as PyObjC's: no attributes and weak references, checked arguments, refusal of what is not imitated."""

from __future__ import annotations

import weakref

import pytest
from softmetal.rules import NotImitated


def test_objects_have_no_weak_references_and_attributes(metal):
    with pytest.raises(TypeError):
        weakref.ref(metal.device)
    with pytest.raises(AttributeError):
        metal.device.note = 1


@pytest.mark.parametrize("argument", [-1, 1 << 64, 1.0, None])
def test_unsigned_arguments_are_checked(metal, argument):
    with pytest.raises(ValueError, match="depythonifying"):
        metal.device.newBufferWithLength_options_(argument, 0)


def test_wrong_number_of_arguments_is_a_type_error(metal):
    with pytest.raises(TypeError):
        metal.device.newBufferWithLength_options_(64)


def test_place_of_an_error_takes_none_only(metal):
    with pytest.raises(TypeError):
        metal.device.newLibraryWithSource_options_error_("", None, object())


def test_structures_are_tuples(metal):
    encoder = metal.compute()
    with pytest.raises(ValueError, match="struct of 3"):
        encoder.dispatchThreads_threadsPerThreadgroup_(5, (1, 1, 1))
    encoder.endEncoding()
    assert tuple(metal.Metal.MTLSizeMake(1, 2, 3)) == (1, 2, 3)


def test_selector_that_is_not_imitated_is_refused(metal):
    with pytest.raises(NotImitated, match="MTLDevice newTextureWithDescriptor_"):
        metal.device.newTextureWithDescriptor_(None)
    with pytest.raises(NotImitated, match="newTextureWithDescriptor_"):
        metal.control.check()
    metal.control.refused.clear()


def test_name_that_is_not_imitated_is_refused(metal):
    with pytest.raises(NotImitated, match=r"Metal\.MTLTextureDescriptor"):
        metal.Metal.MTLTextureDescriptor  # noqa: B018 - the look-up is refused
    metal.control.refused.clear()
    assert not hasattr(metal.Metal, "__wrapped__")


@pytest.mark.parametrize("module", ["objc", "Foundation"])
def test_names_of_the_other_modules_are_refused(metal, module):
    import importlib

    with pytest.raises(NotImitated, match=rf"{module}\.NSBundle"):
        importlib.import_module(module).NSBundle  # noqa: B018 - the look-up is refused
    metal.control.refused.clear()


def test_varlist_has_buffers_of_a_length(metal):
    buffer = metal.buffer()
    contents = buffer.contents()
    contents.as_buffer(4)[0] = 65
    assert contents.as_tuple(2) == (b"A", b"\0")
    assert contents[0] == b"A"
    assert contents[:2] == (b"A", b"\0")


def test_descriptors_are_created_in_two_ways(metal):
    for descriptor in (metal.Metal.MTLHeapDescriptor.new(), metal.Metal.MTLHeapDescriptor.alloc().init()):
        assert (descriptor.size(), descriptor.storageMode()) == (0, metal.Metal.MTLStorageModePrivate)
        descriptor.setResourceOptions_(metal.Metal.MTLResourceHazardTrackingModeTracked)
        assert descriptor.storageMode() == metal.Metal.MTLStorageModeShared
        assert descriptor.resourceOptions() == metal.Metal.MTLResourceHazardTrackingModeTracked


def test_labels(metal):
    metal.queue.setLabel_("work")
    assert metal.queue.label() == "work"


def test_capture_into_a_document(metal, tmp_path):
    from Foundation import NSURL

    names, manager = metal.Metal, metal.Metal.MTLCaptureManager.sharedCaptureManager()
    metal.control.capture_enabled = True
    assert manager.supportsDestination_(names.MTLCaptureDestinationGPUTraceDocument)
    descriptor = names.MTLCaptureDescriptor.new()
    descriptor.setCaptureObject_(metal.device)
    descriptor.setDestination_(names.MTLCaptureDestinationGPUTraceDocument)
    descriptor.setOutputURL_(NSURL.fileURLWithPath_(str(tmp_path / "work.gputrace")))
    assert manager.startCaptureWithDescriptor_error_(descriptor, None) == (True, None)
    assert manager.isCapturing()
    started, error = manager.startCaptureWithDescriptor_error_(descriptor, None)
    assert (started, error.code()) == (False, names.MTLCaptureErrorAlreadyCapturing)
    manager.stopCapture()
    assert not manager.isCapturing()
    assert (tmp_path / "work.gputrace").is_dir()
    assert (
        manager.startCaptureWithDescriptor_error_(descriptor, None)[1].code() == names.MTLCaptureErrorInvalidDescriptor
    )
    metal.control.capture_enabled = False
    assert manager.startCaptureWithDescriptor_error_(descriptor, None)[1].code() == names.MTLCaptureErrorNotSupported
