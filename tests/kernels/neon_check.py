#!/usr/bin/env python3
"""Compiles the NEON kernels with a cross compiler and, where an emulator is present, proves that they give the scalar
kernels' bits.

Exit code 77: no cross compiler is present.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"


def main():
    if shutil.which(COMPILER) is None:
        print(f"skipped: no {COMPILER}")
        return 77
    tensor = [f"src/penstock/tensor/{name}.cc" for name in ("block_formats", "block_panels", "codebook_formats", "dtype")]
    sources = ["src/penstock/kernels/cpu/neon.cc", "src/penstock/kernels/cpu/scalar.cc", *tensor,
               "tests/kernels/neon_check.cc"]
    ccache = [found] if (found := shutil.which("ccache")) else []
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "neon_check"
        objects = []
        for source in sources:
            objects.append(pathlib.Path(folder) / f"{len(objects)}.o")
            # The scalar kernels compile faster with -Og, those of NEON do not.
            optimise = "-Og" if source.endswith("scalar.cc") else "-O1"
            subprocess.run([*ccache, COMPILER, "-std=c++20", optimise, "-Wall", "-Wextra", "-Werror", "-ffp-contract=off",
                            "-march=armv8.2-a+dotprod", "-Isrc", "-Iinclude", "-c", source, "-o", objects[-1]],
                           check=True, cwd=ROOT)
        subprocess.run([COMPILER, "-static", *objects, "-o", program], check=True)
        if shutil.which(EMULATOR) is None:
            print(f"compiled, not run: no {EMULATOR}")
            return 0
        return subprocess.run([EMULATOR, program]).returncode


if __name__ == "__main__":
    sys.exit(main())
