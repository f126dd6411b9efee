"""For every test of the repository: property tests are bounded by examples, never by time, and SIGINT interrupts."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("repository", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repository")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background, whose children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
