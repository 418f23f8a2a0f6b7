"""Implementations shared by the PyTorch-compatible modules (`forebay.cuda`, `.mps`, `.mtia`), over one device kind."""
