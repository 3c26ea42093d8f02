"""Log-mel frames as the manifest's [features] say: Kaldi's filter bank of 80 bins, 25 ms windows every 10 ms."""
import torch
import torchaudio

BINS, RATE = 80, 16000


def frames(samples):
    """samples in [-1, 1] (S) -> (T, BINS)"""
    return torchaudio.compliance.kaldi.fbank(torch.as_tensor(samples)[None] * 32768, sample_frequency=RATE,
                                             num_mel_bins=BINS, dither=0.0)
