"""What all tests share."""

from hypothesis import settings

# No test asserts how fast something is: under load an example takes as long as it takes.
settings.register_profile("relight", deadline=None)
settings.load_profile("relight")
