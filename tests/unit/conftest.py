"""Property tests on machines that are busy with other things: time is no finding."""

from hypothesis import HealthCheck, settings

settings.register_profile("shardworker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shardworker")
