"""Allocator settings of the process: when they are shown, and which of them are read once."""

from __future__ import annotations

import warnings

from support.on_oracle import outcome

FRESH_PROCESS = True


def set_to(cuda, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cuda.memory._set_allocator_settings(text)


def shown(cuda):
    return cuda.memory._snapshot()["allocator_settings"]


def fractions(cuda):
    return [cuda.get_per_process_memory_fraction(index) for index in (0, 1)]


def snapshot_shows_settings_at_once(cuda, torch_like):
    set_to(cuda, "max_split_size_mb:100,garbage_collection_threshold:0.5")
    found = [shown(cuda)]
    cuda.init()
    found.append(shown(cuda))
    set_to(cuda, "expandable_segments:True,pinned_num_register_threads:4")
    found.append(shown(cuda))
    tensor = torch_like.empty(1, device="cuda")
    found.append(shown(cuda))
    set_to(cuda, "roundup_power2_divisions:8,release_lock_on_cudamalloc:True")
    return found, shown(cuda), tensor.numel()


def fraction_is_read_at_initialisation(cuda, torch_like):
    set_to(cuda, "per_process_memory_fraction:0.3")
    cuda.init()
    found = [fractions(cuda)]
    set_to(cuda, "per_process_memory_fraction:0.25")
    tensor = torch_like.empty(1, device="cuda:1")
    return found, fractions(cuda), tensor.numel()


def fraction_set_after_initialisation_has_no_effect(cuda, torch_like):
    cuda.init()
    set_to(cuda, "per_process_memory_fraction:0.25")
    tensor = torch_like.empty(1, device="cuda:1")
    return fractions(cuda), tensor.numel()


def fraction_set_by_the_function_remains(cuda, torch_like):
    set_to(cuda, "per_process_memory_fraction:0.5")
    cuda.set_per_process_memory_fraction(0.75, 1)
    set_to(cuda, "")
    return fractions(cuda)


def statistics_show_the_limit_of_splits_at_initialisation(cuda, torch_like):
    set_to(cuda, "max_split_size_mb:100")
    cuda.init()
    set_to(cuda, "max_split_size_mb:200")
    tensor = torch_like.empty(1, device="cuda:1")
    return [cuda.memory_stats(index)["max_split_size"] for index in (0, 1)], tensor.numel()


def recording_reads_the_settings(cuda, torch_like):
    set_to(cuda, "per_process_memory_fraction:0.5")
    cuda.memory._record_memory_history()
    set_to(cuda, "per_process_memory_fraction:0.25")
    return cuda.is_initialized(), fractions(cuda)


def wrong_types(cuda, torch_like):
    found = [outcome(cuda, set_to, cuda, text) for text in (None, 5, ["a"], b"max_split_size_mb:64")]
    return found, shown(cuda)["max_split_size"]


def invalid_settings_keep_the_keys_before_the_error(cuda, torch_like):
    return outcome(cuda, set_to, cuda, "max_split_size_mb:64,garbage_collection_threshold:2"), shown(cuda)
