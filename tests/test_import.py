import subprocess
import sys


def test_importing_steelyard_needs_torch_alone():
    heavy = ["numpy", "matplotlib", "rich", "tyro", "nibabel", "scipy", "steelyard.imaging", "steelyard.cli"]
    code = f"""
import sys, torch
before = set(sys.modules)
import steelyard
steelyard.Balancer
print([name for name in {heavy} if name in set(sys.modules) - before])
"""
    silent = "ignore:Failed to initialize NumPy:UserWarning"  # torch's own, where numpy is not installed
    out = subprocess.run([sys.executable, "-W", silent, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
    assert out.stderr == ""


def test_without_its_parts_the_command_says_what_to_install():
    code = "import sys; sys.modules['tyro'] = None; from steelyard.__main__ import main; sys.exit(main())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 2
    assert out.stderr == "steelyard: tyro is missing; install steelyard's extra 'all', as README says\n"
