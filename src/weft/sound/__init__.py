"""Sound: wav and flac files, samples as numbers and bytes, spectra, augmentation."""
