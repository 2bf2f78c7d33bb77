import ast
import types

import pytest

from walle.errors import ConfigError
from walle.system import main_script
from walle.system.main_script import require_main_guard

BODIES = {
    "if __name__ == '__main__':\n    call()": True,
    "if '__main__' == __name__:\n    x = 1\n    call()": True,
    "if __name__ == '__main__':\n    pass\nelse:\n    x = 1\ncall()": False,
    "call()": False,
    "for i in range(1):\n    call()": False,
    "def main():\n    call()\n\nmain()": False,
    "def main():\n    call()\n\nif __name__ == '__main__':\n    main()": True,
}


@pytest.mark.parametrize("body", BODIES)
def test_a_script_s_call_needs_a_guard(body, tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(body)
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    monkeypatch.setitem(main_script.sys.modules, "__main__", main)
    main.call = lambda: require_main_guard("walle.train")
    code = compile(ast.parse(body), str(path), "exec")
    if BODIES[body]:
        exec(code, vars(main))
        return
    with pytest.raises(ConfigError, match=r"script\.py, line \d+: walle\.train starts processes"):
        exec(code, vars(main))


def test_a_call_from_a_notebook_or_another_module_needs_none():
    notebook = types.ModuleType("__main__")
    notebook.call = lambda: require_main_guard("walle.train")
    exec("answer = call()", vars(notebook))
    assert notebook.answer is None
    assert require_main_guard("walle.train") is None  # this module is not the script
