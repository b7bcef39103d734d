# The controller worker. Slurm's commands come from Debian: choose the suite whose Slurm is not newer than your
# slurmctld and at most two releases older (bookworm: 22.05, trixie: 24.11), or mount your site's own (docker-compose.yml).
ARG SUITE=trixie
FROM python:3.13-slim-${SUITE}

RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-client \
 && rm -rf /var/lib/apt/lists/*

# The same number as the user `relight` on the cluster: Slurm knows people by number.
ARG RELIGHT_UID=990
RUN useradd --uid ${RELIGHT_UID} --create-home relight \
 && install -d -o relight -g relight -m 0700 /var/lib/relight

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY activities activities
COPY attribution attribution
COPY clients clients
COPY config config
COPY console console
COPY domain domain
COPY lab lab
COPY workers workers
COPY workflows workflows
RUN pip install --no-cache-dir -c constraints.txt '.[postgres,scan]'

USER relight
WORKDIR /var/lib/relight
ENV RELIGHT_DATA=/var/lib/relight
ENTRYPOINT ["relight"]
CMD ["worker"]
