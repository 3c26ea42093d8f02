"""One source read once, two continuations.   fork.py MODEL.toml "text" """

import attnkit
from common import opened

model, ids = opened()
session = attnkit.Session(model, 1)
session.read(ids)
for one in (session, session.clone()):
    print(model.detokenize(attnkit.TARGET, one.clone().generate()))
