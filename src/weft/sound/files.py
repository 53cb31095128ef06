"""Sound files as samples in [−1, 1]: wav by the standard library, flac and others by soundfile.

A model reads one channel at one rate. What a file has instead is said with its name, and what the
caller may ask for: `resample`, `mix`. A file that is cut short, empty, silent or not finite is
refused.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from weft.errors import WeftError
from weft.sound.samples import resampled

ENDINGS = (".wav", ".flac", ".ogg")
_FASTEST = 1_000_000  # samples a second; what says more is damaged, and converting it never ends
_WIDTHS = {1: "u1", 2: "<i2", 4: "<i4"}  # bytes of a sample; 3 has no type of its own


def read_sound(path: Path, rate: int, *, resample: bool = False, mix: bool = False) -> np.ndarray:
    """The samples (n,) float32 of a file with this many of them a second.

    `resample`: files at another rate are converted. `mix`: channels are averaged.
    """
    channels, found = _read(path)  # (n, channels)
    if not 1 <= found <= _FASTEST:
        raise WeftError(
            f"{path} says that it has {found:,} samples a second; sounds have 1 to {_FASTEST:,}"
        )
    if channels.shape[1] != 1 and not mix:
        raise WeftError(
            f"{path} has {channels.shape[1]} channels, and one is read: mix=true averages them"
        )
    samples = channels.mean(1, dtype=np.float64)  # (n,)
    check_samples(samples, str(path))
    if found != rate:
        if not resample:
            raise WeftError(
                f"{path} has {found:,} samples a second, and {rate:,} are read: resample=true "
                f"converts it, rate={found} reads it as it is"
            )
        samples = resampled(samples, found, rate)
    return samples.astype(np.float32)


def check_samples(samples: np.ndarray, where: str) -> None:
    """Refuse what no model can learn from: nothing, silence, and samples that are not finite."""
    if not len(samples):
        raise WeftError(f"{where} holds no samples; leave it out")
    finite = np.isfinite(samples)
    if not finite.all():
        raise WeftError(
            f"{where}: sample {int((~finite).argmax()):,} is {samples[~finite][0]}, not a finite "
            "number; repair the file or leave it out"
        )
    if samples.max() == samples.min():
        raise WeftError(f"{where} is silent: all of its samples are equal; leave it out")


def _read(path: Path) -> tuple[np.ndarray, int]:
    """Samples (n, channels) in [−1, 1], and how many there are a second."""
    if not path.is_file():
        raise WeftError(f"there is no sound file {str(path)!r}")
    if path.suffix.lower() != ".wav":
        return _by_soundfile(path)
    try:
        with wave.open(str(path), "rb") as file:
            width, rate, promised = file.getsampwidth(), file.getframerate(), file.getnframes()
            channels, data = file.getnchannels(), file.readframes(promised)
    except EOFError as cause:
        raise WeftError(f"{path} is cut short: it ends inside its header; copy it again") from cause
    except RuntimeError as cause:  # of `wave`, which follows a length past the end of the file
        raise WeftError(f"{path} is damaged: a length in it is wrong; copy it again") from cause
    except wave.Error as cause:
        if "unknown format" in str(cause):  # floats and others
            return _by_soundfile(path)
        raise WeftError(f"{path} is not a wav file ({cause})") from cause
    if width not in (*_WIDTHS, 3):
        raise WeftError(f"{path} has {width} bytes a sample; wav files have 1, 2, 3 or 4")
    whole = len(data) // (width * channels)
    if whole < promised:
        raise WeftError(
            f"{path} is cut short: its header promises {promised:,} samples, it holds {whole:,}; "
            "copy it again"
        )
    return _numbers(data, width).reshape(-1, channels), rate


def _numbers(data: bytes, width: int) -> np.ndarray:
    """PCM of 1 (unsigned), 2, 3 or 4 bytes a sample as numbers in [−1, 1)."""
    if width == 3:
        parts = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8) | (parts[:, 1] << 16) | (parts[:, 2] << 24)
        return whole / 2.0**31
    raw = np.frombuffer(data, dtype=_WIDTHS[width]).astype(np.float64)
    return (raw - 128.0) / 128.0 if width == 1 else raw / 2.0 ** (8 * width - 1)


def _by_soundfile(path: Path) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except ImportError as cause:
        raise WeftError(
            f"{path} is not a wav file of whole numbers (PCM), which alone is read without "
            "soundfile: pip install soundfile"
        ) from cause
    try:
        samples, rate = soundfile.read(str(path), dtype="float64", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, MemoryError) as cause:
        raise WeftError(f"{path} cannot be read as sound: {cause}") from cause
    return samples, int(rate)


def write_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    """Samples (n,) or (n, channels) in [−1, 1] as a wav file of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(to_int16(samples).astype("<i2").tobytes())


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Samples in [−1, 1) as 16 bits; those of a file of 16 bits come back as they were."""
    return np.rint(samples * 32768.0).clip(-32768, 32767).astype(np.int16)
