"""What the NVIDIA driver logs, and what CUDA then says to a program, for the Xids that the lab pretends.

Wording: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) and kernel logs of A100 and H100 nodes.
"""

from dataclasses import dataclass

PCI_ADDRESSES = tuple(f"0000:{bus}:00" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
"""Of GPUs 0 to 7, as on an eight-GPU H100 node."""


@dataclass(frozen=True)
class XidTexts:
    """One failure of a GPU."""

    lines: tuple[tuple[int, str], ...]
    """Xid and message of each line, in order. One failure often logs several."""
    cuda: str
    """CUDA's name of the error."""

    @property
    def cuda_text(self) -> str:
        """The message of the exception that PyTorch raises (c10/cuda/CUDAException.cpp)."""
        return f"CUDA error: {self.cuda}\n{HINTS}"


HINTS = """\
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

ECC = "uncorrectable ECC error encountered"
PROGRAM = "pid={pid}, name=python"
NOBODY = "pid='<unknown>', name=<unknown>"

REMAP = (63, f"{NOBODY}, Row Remapper: New row marked for remapping, reset gpu to activate.")
DOUBLE_BIT = (48, f"{PROGRAM}, DBE (double bit error) detected in the framebuffer: uncorrectable ECC error")
CONTAINED = (94, f"{PROGRAM}, Contained: CE User Channel (0x9). RST: No, D-RST: No")
UNCONTAINED = (95, f"{PROGRAM}, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")
MMU_FAULT = (
    31,
    f"{PROGRAM}, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2c_5c000000.",
)
OFF_THE_BUS = (79, f"{NOBODY}, GPU has fallen off the bus.")

XIDS = {
    31: XidTexts((MMU_FAULT,), "an illegal memory access was encountered"),
    # Since A100 a double-bit error is followed by the row remapper and by containment: NVIDIA's "GPU memory error
    # management" has 94 where only the process is lost and 95 where the GPU is.
    48: XidTexts((DOUBLE_BIT, REMAP, CONTAINED), ECC),
    79: XidTexts((OFF_THE_BUS,), "unspecified launch failure"),
    94: XidTexts((CONTAINED, REMAP), ECC),
    95: XidTexts((DOUBLE_BIT, UNCONTAINED), ECC),
}
