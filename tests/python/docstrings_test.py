"""Every public name of the package says what it is: modules, and what they define without an underscore."""

import ast
import pathlib
import unittest

import attnkit

PACKAGE = pathlib.Path(attnkit.__file__).parent


def public(body, prefix=""):
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")


class Docstrings(unittest.TestCase):
    def test_all(self):
        found, lacking = 0, []
        for file in sorted(PACKAGE.rglob("*.py")):
            module = ast.parse(file.read_text(encoding="utf-8"))
            names = [] if file.name.startswith("_") and file.name != "__init__.py" else public(module.body)
            for name, node in [("", module), *names]:
                found += 1
                if not ast.get_docstring(node):
                    lacking.append(f"{file.relative_to(PACKAGE)}: {name or 'the module'}")
        self.assertEqual(lacking, [])
        self.assertGreater(found, 150)


if __name__ == "__main__":
    unittest.main()
