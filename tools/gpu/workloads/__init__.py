"""Small PyTorch programs whose memory is measured on a GPU, and predicted on emulated devices.

They import nothing of forebay. `all_workloads.load` returns them, `recording.record` runs one and measures it.
"""
