"""Words of column names in other European languages, in the English that this package knows."""

from __future__ import annotations

import re

# In snake case and without accents. Longer words go first.
WORDS = {
    "execution_time": "tiempo_de_ejecucion tempo_de_execucao tempo_di_esecuzione temps_d_execution "
    "ausfuhrungszeit laufzeit rechenzeit berechnungszeit czas_wykonania "
    "thoi_gian_chay",
    "mean_time": "tiempo_promedio tiempo_medio tempo_medio temps_moyen",
    "time": "tiempo_total tiempo_real tiempo tempo_totale tempo zeit czas thoi_gian",
    "time_s": "tiempo_seg temps_s",
    "time_ms": "temps_ms",  # alone, these are temperatures
    "speedup": "aceleracion accelerazione aceleracao beschleunigung przyspieszenie tang_toc",
    "efficiency": "eficiencia efficienza efficacite effizienz efektywnosc hieu_suat",
    "parallel_time": "tempo_paralelo tiempo_paralelo tempo_parallelo",
    "configuration": "configuracao configuracion configurazione konfiguration",
    "threads": "hilos watki watkow luong",
    "cores": "nucleos kerne coeurs",
    "processes": "procesos processos processi prozesse procesy procesow tien_trinh",
    "nodes": "nodos nodi noeuds knoten wezly wezlow",
    "number_of": "anzahl_der anzahl numero_de nombre_de numero_di liczba so",
    "s": "segundos segs sekunden secondi",
}
ENGLISH = {word: english for english, words in WORDS.items() for word in words.split()}
KNOWN = re.compile(rf"(?<![^_])(?:{'|'.join(sorted(ENGLISH, key=len, reverse=True))})(?![^_])")


def from_european(name: str) -> str:
    """A name in snake case with the words that are known in English."""
    return KNOWN.sub(lambda match: ENGLISH[match.group()], name)
