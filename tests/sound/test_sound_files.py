"""Sound files: samples come back as written, and what cannot be used is said with the file."""

import math
import wave

import numpy as np
import pytest

from weft.errors import WeftError
from weft.sound.files import read_sound, to_int16, write_wav
from weft.sound.inputs import SoundInput
from weft.sound.samples import from_mu_law, linear_bytes, mu_law, resampled, standardised


def tone(count=400, rate=8_000, pitch=440.0):
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(count) / rate)


def raw_wav(path, data, width=2, channels=1, rate=8_000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


def test_samples_of_16_bits_come_back(tmp_path):
    whole = np.random.default_rng(0).integers(-32768, 32768, 500).astype("<i2")
    path = raw_wav(tmp_path / "a.wav", whole.tobytes())
    found = read_sound(path, 8_000)
    assert found.dtype == np.float32
    assert (to_int16(found) == whole).all()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_width_is_read(tmp_path, width):
    values = [0.5, -0.25, -1.0]
    if width == 1:
        data = bytes(int(v * 128 + 128) for v in values)
    else:
        whole = (int(v * 2 ** (8 * width - 1)) for v in values)
        data = b"".join(v.to_bytes(width, "little", signed=True) for v in whole)
    found = read_sound(raw_wav(tmp_path / "a.wav", data, width), 8_000)
    assert found.tolist() == values


def test_stereo_is_mixed_only_when_asked(tmp_path):
    sides = np.stack((tone(), -0.5 * tone()), axis=1)
    path = tmp_path / "two.wav"
    write_wav(path, sides, 8_000)
    with pytest.raises(WeftError, match=r"two.wav has 2 channels.*mix=true"):
        read_sound(path, 8_000)
    assert np.abs(read_sound(path, 8_000, mix=True) - 0.25 * tone()).max() < 1e-4


def test_another_rate_is_converted_only_when_asked(tmp_path):
    path = tmp_path / "fast.wav"
    write_wav(path, tone(3_200, 16_000), 16_000)
    with pytest.raises(WeftError, match=r"fast.wav has 16,000 samples a second, and 8,000"):
        read_sound(path, 8_000)
    found = read_sound(path, 8_000, resample=True)
    assert len(found) == 1_600
    assert np.abs(found - tone(1_600))[100:-100].max() < 2e-3


@pytest.mark.parametrize(("rate", "wanted"), [(8_000, 11_025), (22_050, 8_000), (8_000, 16_000)])
def test_resampling_keeps_a_tone_and_removes_what_would_fold(rate, wanted):
    count = rate // 5
    found = resampled(tone(count, rate), rate, wanted)
    inside = slice(len(found) // 5, -len(found) // 5)
    assert np.abs(found - tone(len(found), wanted))[inside].max() < 2e-3
    if wanted < rate:
        high = resampled(tone(count, rate, pitch=0.45 * rate), rate, wanted)
        assert np.abs(high[inside]).max() < 2e-3


def test_a_file_that_is_cut_short(tmp_path):
    path = tmp_path / "cut.wav"
    write_wav(path, tone(), 8_000)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(WeftError, match=r"cut.wav is cut short: its header promises 400 .*350"):
        read_sound(path, 8_000)
    path.write_bytes(whole[:20])
    with pytest.raises(WeftError, match=r"cut.wav is cut short: it ends inside its header"):
        read_sound(path, 8_000)
    path.write_bytes(b"no sound at all, but long enough to be read as one by its first bytes")
    with pytest.raises(WeftError, match=r"cut.wav is not a wav file"):
        read_sound(path, 8_000)


def test_a_length_that_leads_past_the_end(tmp_path):
    """`wave` goes to the end of each chunk, wherever its length says that is."""
    path = tmp_path / "length.wav"
    write_wav(path, tone(), 8_000)
    whole = path.read_bytes()
    assert whole[16:20] == (16).to_bytes(4, "little")  # of the format
    path.write_bytes(whole[:16] + (2**31).to_bytes(4, "little") + whole[20:])
    with pytest.raises(WeftError, match=r"length.wav is damaged: a length in it is wrong"):
        read_sound(path, 8_000)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [(24, 2**31, "2,147,483,648 samples a second"), (34, 5 * 8, "has 5 bytes a sample")],
)
def test_headers_that_no_sound_has(tmp_path, at, value, message):
    path = tmp_path / "odd.wav"
    write_wav(path, tone(), 8_000)
    whole = path.read_bytes()
    size = 4 if at == 24 else 2
    path.write_bytes(whole[:at] + value.to_bytes(size, "little") + whole[at + size :])
    with pytest.raises(WeftError, match=message):
        read_sound(path, 8_000, resample=True)


def test_silence_nothing_and_no_file(tmp_path):
    path = tmp_path / "still.wav"
    write_wav(path, np.zeros(50), 8_000)
    with pytest.raises(WeftError, match=r"still.wav is silent"):
        read_sound(path, 8_000)
    write_wav(path, np.zeros(0), 8_000)
    with pytest.raises(WeftError, match=r"still.wav holds no samples"):
        read_sound(path, 8_000)
    with pytest.raises(WeftError, match="there is no sound file"):
        read_sound(tmp_path / "none.wav", 8_000)


def test_flac_and_floats_by_soundfile(tmp_path):
    soundfile = pytest.importorskip("soundfile", reason="flac needs soundfile")
    whole = to_int16(tone())
    soundfile.write(tmp_path / "a.flac", whole, 8_000, subtype="PCM_16")
    assert (to_int16(read_sound(tmp_path / "a.flac", 8_000)) == whole).all()
    broken = tone().astype(np.float32)
    broken[7] = math.nan
    soundfile.write(tmp_path / "nan.wav", broken, 8_000, subtype="FLOAT")
    with pytest.raises(WeftError, match=r"nan.wav: sample 7 is nan"):
        read_sound(tmp_path / "nan.wav", 8_000)
    (tmp_path / "a.flac").write_bytes(b"fLaC" + bytes(20))
    with pytest.raises(WeftError, match=r"a.flac cannot be read as sound"):
        read_sound(tmp_path / "a.flac", 8_000)


def test_flac_without_soundfile_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(WeftError, match=r"pip install soundfile"):
        read_sound(tmp_path / "a.flac", 8_000)


def test_mu_law_follows_its_equation():
    for x in (-1.0, -0.3, -0.001, 0.0, 0.002, 0.5, 1.0):
        squeezed = math.copysign(math.log(1 + 255 * abs(x)) / math.log(256), x)
        assert mu_law(np.array([x]))[0] == math.floor((squeezed + 1) / 2 * 255 + 0.5)
    x = np.linspace(-1, 1, 4001)
    codes = mu_law(x)
    assert codes.min() == 0
    assert codes.max() == 255
    assert (np.diff(codes.astype(int)) >= 0).all()
    step = np.log(256) / 255 * (np.abs(x) + 1 / 255)  # half of what one code covers, in x
    assert (np.abs(from_mu_law(codes) - x) <= 1.02 * step).all()


def test_forms_of_a_sound():
    assert linear_bytes(np.array([-1.0, 0.0, 0.999])).tolist() == [0, 128, 255]
    found = standardised(to_int16(tone()))
    assert abs(found.mean()) < 1e-6
    assert abs(found.std() - 1) < 1e-4
    assert SoundInput().coded(to_int16(tone())).shape == (400, 1)
    assert SoundInput(form="mu_law").coded(to_int16(tone())).dtype == np.uint8
    with pytest.raises(WeftError, match="form is"):
        SoundInput(form="mp3")
