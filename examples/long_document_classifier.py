"""Classify documents of up to 1,024 words by one passage hidden in each, with Longformer.

A learned register stands in front of every document. It is global: it reads all words and all
words read it, so the classifier only has to look at the register.
"""

import torch
import torch.nn.functional as F

import weft

LENGTH, WORDS, TOPICS, PASSAGE = 1024, 64, 4, 64


def documents(batch):
    """Word ids (b, n), which of them are real (b, n), and the topic of the passage (b,)."""
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (batch,))
    place = torch.arange(LENGTH)
    topic = torch.randint(TOPICS, (batch,))
    begin = (torch.rand(batch) * (lengths - PASSAGE)).long()[:, None]
    inside = (place >= begin) & (place < begin + PASSAGE)
    words = torch.randint(TOPICS, WORDS, (batch, LENGTH))
    return torch.where(inside, topic[:, None], words), place < lengths[:, None], topic


torch.manual_seed(0)
model = weft.Classifier(
    trunk=weft.Encoder(
        embedding=weft.Embedding(vocab=WORDS, registers=1),
        stack=weft.Stack(
            frame=weft.Frame(dim=32, heads=2),
            order="sf",
            mixer="longformer(window=17, global_first=1)",
        ),
    ),
    classes=TOPICS,
    pool="first",
).build()

optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    ids, valid, topic = documents(8)
    loss = F.cross_entropy(model(ids, valid=valid), topic)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 5 == 4:
        print(f"step {step + 1:2}  loss {loss.item():.3f}")

with torch.no_grad():
    ids, valid, topic = documents(32)
    accuracy = (model(ids, valid=valid).argmax(-1) == topic).float().mean().item()
print(f"new documents: {100 * accuracy:.0f}% right, {100 / TOPICS:.0f}% by chance")
