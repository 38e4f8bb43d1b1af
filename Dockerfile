# A falconet server on the CPU. TORCH_INDEX is where the small CPU build of torch comes from (pytorch.org's installation
# page names the address); without it the usual, larger one is taken.
#
#     docker build -t falconet --build-arg TORCH_INDEX=URL .
#     docker run -p 8000:8000 -v ./work/bundle:/srv/bundle:ro -v falconet-state:/srv/state falconet
FROM python:3.12-slim AS build
ARG TORCH_INDEX=
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN python -m venv /opt/falconet \
 && /opt/falconet/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)" \
 && /opt/falconet/bin/pip install --no-cache-dir --constraint constraints.txt ".[metrics,postgres,redis]"

FROM python:3.12-slim
COPY --from=build /opt/falconet /opt/falconet
RUN useradd --create-home falconet && mkdir -p /srv/state && chown falconet /srv/state
USER falconet
WORKDIR /srv
ENV PATH=/opt/falconet/bin:$PATH OMP_NUM_THREADS=1
VOLUME /srv/state
EXPOSE 8000
HEALTHCHECK --start-period=30s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=3)"]
ENTRYPOINT ["falconet"]
CMD ["serve", "/srv/bundle", "--host", "0.0.0.0", "--db", "/srv/state/events.db", "--watch", "--log"]
