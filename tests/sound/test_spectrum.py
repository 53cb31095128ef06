"""Spectra against Transformers' audio tools, cosines and slopes against their formulas in loops."""

import math

import numpy as np
import pytest

from weft.sound.spectrum import differences, log_mel, mel_filters, mfcc, step_of, window_of


def sound(count=2_000, seed=0):
    return np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_log_mel_against_transformers(rate):
    tools = pytest.importorskip("transformers.audio_utils")
    window, step = window_of(rate), step_of(rate)
    size = 2 ** math.ceil(math.log2(window))
    filters = tools.mel_filter_bank(
        num_frequency_bins=size // 2 + 1, num_mel_filters=40, min_frequency=0.0,
        max_frequency=rate / 2, sampling_rate=rate, mel_scale="htk",
    )  # fmt: skip
    assert np.abs(mel_filters(rate, size, 40) - filters.T).max() < 1e-9
    x = sound()
    emphasised = np.array([x[0], *(x[i] - 0.97 * x[i - 1] for i in range(1, len(x)))])
    wanted = tools.spectrogram(
        emphasised, tools.window_function(window, "hann", periodic=True), window, step,
        fft_length=size, power=2.0, center=False, mel_filters=filters, mel_floor=0.0,
    )  # fmt: skip
    found = log_mel(x, rate)
    assert found.shape == ((2_000 - window) // step + 1, 40)
    assert np.abs(np.exp(found) - 1e-6 - wanted.T).max() < 1e-4 * wanted.max()


def test_coefficients_follow_their_formulas():
    found, bands = mfcc(sound(), 8_000), log_mel(sound(), 8_000)
    assert found.shape == (len(bands), 39)
    for k in range(13):
        scale = math.sqrt((1 if k == 0 else 2) / 40)
        own = [
            scale * sum(row[n] * math.cos(math.pi * k * (2 * n + 1) / 80) for n in range(40))
            for row in bands
        ]
        assert np.abs(found[:, k] - own).max() < 1e-9
    assert np.array_equal(found[:, 13:26], differences(found[:, :13]))
    assert np.array_equal(found[:, 26:], differences(found[:, 13:26]))


def test_a_difference_is_the_slope_of_a_line():
    line = 3.0 * np.arange(9)[:, None] + 1.0
    assert differences(line)[2:-2].tolist() == [[3.0]] * 5
    bent = np.array([0.0, 0, 0, 1, 0, 0, 0])[:, None]
    assert np.allclose(differences(bent)[:, 0], [0, 0.2, 0.1, 0, -0.1, -0.2, 0])


def test_a_short_sound_makes_one_frame():
    assert mfcc(sound(30), 8_000).shape == (1, 39)
