"""Compilation of MSL for the CPU: translate.py makes C++ of it, compiler.py a library, include/ has Metal's headers."""
