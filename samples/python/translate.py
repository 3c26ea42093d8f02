import sys

import attnkit

try:
    with attnkit.Runtime() as runtime:
        model = attnkit.Model(runtime, sys.argv[1] if len(sys.argv) > 1 else "samples/models/numbers-en-de/model.toml")
        print(model.translate(sys.argv[2] if len(sys.argv) > 2 else "two hundred and forty-one euros"))
except attnkit.Error as error:
    sys.exit(str(error))
