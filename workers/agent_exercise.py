"""A short exercise of every GPU: memory written and read back, and a product of matrices that is known exactly.

Run as a program by whatever Python of the node has PyTorch or CuPy, which need not be the agent's: nothing but the
standard library is imported before one of them, and nothing of ours. One JSON object per GPU on standard output:

    {"gpu": 0, "ok": true, "text": "256 MiB read back 2 times, 8 products exact"}

`ok` is false where values were wrong or the hardware failed, null where the exercise could not be made.

Ends with 0 where it was made on all GPUs, whatever came out; with 3 where there is no library, or no GPU for it.
"""

import json
import sys
import time

BYTES = 256 << 20
"""Of each GPU's memory: enough to touch every bank, and over in a moment."""
SIZE = 2048
ROUNDS = 8
PATTERNS = (0x5A, 0xA5)
"""Each bit once as 0 and once as 1."""
NOT_POSSIBLE = 3


def tell(**what: object) -> None:
    """One line for the agent."""
    print(json.dumps(what), flush=True)  # noqa: T201 - this is the answer


def with_torch() -> int:
    """By PyTorch; how many GPUs there are."""
    import torch

    count: int = torch.cuda.device_count()
    for gpu in range(count):
        try:
            began = time.monotonic()
            device = torch.device("cuda", gpu)
            free, _ = torch.cuda.mem_get_info(device)
            size = min(BYTES, free // 4)
            wrong = 0
            for pattern in PATTERNS:
                held = torch.full((size,), pattern, dtype=torch.uint8, device=device)
                wrong += int((held != pattern).sum().item())
                del held
            row = torch.arange(SIZE, device=device, dtype=torch.float32) % 7
            left, right = row.repeat(SIZE, 1), row.repeat(SIZE, 1).t().contiguous()
            # Sums of small whole numbers: exact in float32, and in TF32 too.
            expected = float(sum((n % 7) ** 2 for n in range(SIZE)))
            for _ in range(ROUNDS):
                wrong += int(((left @ right) != expected).sum().item())
            torch.cuda.synchronize(device)
            report(gpu, wrong, size, time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - whatever a broken GPU brings about, the next is looked at
            tell(gpu=gpu, ok=verdict(error), text=f"{type(error).__name__}: {error}"[:300])
    return count


def with_cupy() -> int:
    """By CuPy; how many GPUs there are."""
    import cupy  # type: ignore[import-not-found]

    count = int(cupy.cuda.runtime.getDeviceCount())
    for gpu in range(count):
        try:
            began = time.monotonic()
            with cupy.cuda.Device(gpu):
                size = min(BYTES, cupy.cuda.runtime.memGetInfo()[0] // 4)
                wrong = 0
                for pattern in PATTERNS:
                    held = cupy.full(size, pattern, dtype=cupy.uint8)
                    wrong += int((held != pattern).sum())
                    del held
                row = cupy.arange(SIZE, dtype=cupy.float32) % 7
                left = cupy.tile(row, (SIZE, 1))
                expected = float(sum((n % 7) ** 2 for n in range(SIZE)))
                for _ in range(ROUNDS):
                    wrong += int((left @ left.T != expected).sum())
            report(gpu, wrong, size, time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - as above
            tell(gpu=gpu, ok=verdict(error), text=f"{type(error).__name__}: {error}"[:300])
    return count


BROKEN = ("uncorrectable", "ecc error", "launch failure", "illegal", "misaligned", "hardware", "is lost")
"""What CUDA says when the GPU itself is to blame. All else may be the library's: a build for other GPUs, no memory."""


def verdict(error: Exception) -> "bool | None":
    """False where the GPU failed; None where the exercise could not be made."""
    return False if any(word in str(error).lower() for word in BROKEN) else None


def report(gpu: int, wrong: int, size: int, seconds: float) -> None:
    """How one GPU did."""
    text = f"{size >> 20} MiB read back {len(PATTERNS)} times, {ROUNDS} products exact, {seconds:.1f} s"
    if wrong:
        text = f"{wrong} values read back or computed wrong"
    tell(gpu=gpu, ok=not wrong, text=text)


def main() -> int:
    """Run as a program."""
    why = []
    for library, make in (("torch", with_torch), ("cupy", with_cupy)):
        try:
            if make():
                return 0
            why.append(f"{library} sees no GPU")
        except ModuleNotFoundError:
            why.append(f"no {library}")
        except Exception as error:  # noqa: BLE001 - a library without its driver
            why.append(f"{library}: {type(error).__name__}: {error}"[:200])
    tell(why=", ".join(why))
    return NOT_POSSIBLE


if __name__ == "__main__":
    sys.exit(main())
