"""Tables whose columns have Spanish, German or other European names."""

from __future__ import annotations

import pytest
from audits import below, broken, pasted

from lab.analysis.audit.columns import guess, normal
from lab.analysis.audit.languages import from_european
from lab.analysis.audit.values import TIME_UNITS, duration, number


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "threads": [
            *("Hilos", "Потоки", "Число потоков", "Liczba wątków", "Số luồng", "Nb threads"),
            *("Numero di thread", "İş Parçacığı"),
        ],
        "world_size": [
            *(
                "Procesos",
                "Prozesse",
                "Процессы",
                "Кількість процесів",
                "Количество процессов",
                "Nb de processus",
            ),
            *("Prozessoren", "Procesadores", "Prozessanzahl", "GPU Sayısı", "GPU-Anzahl"),
        ],
        "cpus": ["Nombre de cœurs", "Numero di core", "Rechenkerne"],
        "time": [
            *("Tiempo de Ejecución (segs)", "Laufzeit [s]", "Berechnungszeit", "Temps (ms)"),
            *("Tiempo (microsegundos)", "Zeit (Millisekunden)", "Benötigte Zeit (ms)"),
            *(
                "Zeit pro Schritt [s]",
                "Zeit pro Zeitschritt [ms]",
                "Zeit pro Epoche (min)",
                "Temps par itération (ms)",
            ),
            *("Tiempo por paso (s)", "Tempo por época (s)", "Tempo per iterazione [ms]"),
            *("Temps d'exécution (en s)", "Время, час", "Povp. čas [s]"),
            *("Temps de calcul", "Durée (s)", "Duração", "Tempo médio de execução", "Süre (sn)"),
        ],
        "speedup": [
            *("Aceleración", "Beschleunigung", "Ускорение", "Przyspieszenie", "Hızlanma"),
            *("Ganancia", "Pospešek"),
        ],
        "efficiency": [
            *("Eficiencia", "Efficacité", "Effizienz (%)", "Эффективность, %", "Verimlilik"),
        ],
        "repeat": ["Wiederholung", "Durchlauf", "Repetición", "Répétition", "Ripetizione"],
        "per_node": ["GPUs pro Knoten", "GPUs par nœud", "GPUs por nodo", "GPU per nodo"],
        "rate": ["Durchsatz [Mrd. Zellen/s]", "Débit (M cellules/s)"],
        "nodes": ["Nodos", "Knoten", "Узлы", "Nœuds", "Nós (P)"],
        "std": ["Écart-type (s)", "Standardabweichung", "Desviación estándar", "Desvio padrão"],
    }.items(),
)
def test_names(canonical: str, names: list[str]) -> None:
    meanings = {name: (meaning.canonical if (meaning := guess(name)) else "") for name in names}
    assert meanings == dict.fromkeys(names, canonical)


@pytest.mark.parametrize(
    "name",
    [
        "Час, с",
        "Час виконання (мс)",
        "Время, с",
        "Время (мс)",
        "Время выполнения (сек)",
        "Время, мин",
        "Время работы (ч)",
        "Czas [s]",
        "Thời gian (s)",
    ],
)
def test_times(name: str) -> None:
    meaning = guess(name)
    assert meaning is not None and meaning.canonical == "time" and meaning.factor


def test_parts_of_other_words_stay() -> None:
    assert normal("temporal_ms") == "temporal_ms"
    assert from_european("seitenzeit") == "seitenzeit"
    assert guess("GPU temps") is None and guess("temps") is None and guess("CAS") is None


def test_threads_with_decimal_commas() -> None:
    table = """
    | Hilos | Tiempo | Aceleración | Eficiencia |
    |---:|---:|---:|---:|
    | 1 | 2 400,0 ms | 1,00 | 100 % |
    | 2 | 1 250,0 ms | 1,92 | 96 % |
    | 8 | 200,0 ms | 12,00 | 150 % |
    """
    result = pasted(table)
    assert result.reading["Hilos"] == "world_size"
    assert broken(result) == {"super-linear"}


def test_processes_in_cells_beside_a_serial_program() -> None:
    rows = "".join(f"| {n} Processos | {t} | {s}x |\n" for n, t, s in ((2, "200,5", "1,50"),))
    table = "| Configuração | Tempo (s) | Speedup |\n|---|---|---|\n| Serial | 300,75 | 1,00x |\n"
    result = pasted(table + rows)
    assert "super-linear" in result.checked and not broken(result)


def test_three_decimals_after_a_comma() -> None:
    table = """
    | Processos | Tempo Paralelo (s) | Speedup |
    |---|---|---|
    | 1 (base) | 11,2465 | 1,0 |
    | 2 | 7,7442 | 1,452 |
    """
    result = pasted(table)
    assert result.reading["Tempo Paralelo (s)"] == "time"
    assert not broken(result)
    assert broken(pasted(table.replace("11,2465", "11.2465")))  # then 1,452 is a thousand


def test_times_with_units_and_decimal_commas() -> None:
    rows = ["| 1 | 3,786 ms | 1,00 |", "| 2 | 3,768 ms | 1,005 |", "| 4 | 4,2 ms | 0,9 |"]
    table = "| # threads | tempo médio de execução | aceleração |\n|---|---|---|\n"
    assert not broken(pasted(table + "\n".join(rows)))


def test_points_that_group_thousands() -> None:
    table = """
    | Prozesse | Laufzeit (ms) | Speedup |
    |---|---|---|
    | 1 | 65.025 | 1,00 |
    | 2 | 33.100,5 | 1,96 |
    | 8 | 9.250,75 | {} |
    """
    assert not broken(pasted(table.format("7,03")))
    assert broken(pasted(table.format("9,03"))) == {"quoted-against-own"}


def test_points_in_a_column_without_other_numbers_stay() -> None:
    rows = "".join(
        f"| {n} | {t} | {s} |\n" for n, t, s in ((1, "9.600", "1,00"), (2, "5.000", "1,92"))
    )
    result = pasted("| Prozesse | Laufzeit (s) | Speedup |\n|---|---|---|\n" + rows)
    assert not broken(result) and "9600" not in str(result)


def test_a_program_after_the_word_for_its_time() -> None:
    text = "Hilos,Tiempo OMP,Speedup\n1,40.1,1.00\n2,21.0,1.91\n4,11.5,{}\n"
    assert not broken(pasted(text.format(3.49)))
    assert broken(pasted(text.format(3.89))) == {"quoted-against-own"}


def test_units_in_cells() -> None:
    assert duration("12 segundos") == 12 and duration("250 Millisekunden") == 0.25
    assert duration("12 seg") == 12 and duration("3 Stunden") == duration("3 heures") == 10_800
    assert number("~2-3 horas", units=TIME_UNITS) == 9000
    assert number("30-40 min", units=TIME_UNITS) == 2100


def test_threads_in_words_beside_a_serial_program() -> None:
    rows = [f"| Parallel mit {n} Threads | {t} |" for n, t in ((2, 41.5), (4, 22.0), (8, 12.5))]
    result = pasted(below("| Ausführung | Laufzeit (s) |", "| Sequentiell | 80.0 |", *rows))
    assert "super-linear" in result.checked and not broken(result)


def test_theoretical_speedups_are_not_measured() -> None:
    names = ["Speedup Teórico", "Accélération théorique", "Theoretische Beschleunigung"]
    assert [guess(name) for name in names] == [None] * len(names)


def test_threads_or_processes_are_one_count_also_in_portuguese() -> None:
    rows = ["| 1 | 1480 | 1.0 | 100 |", "| 2 | 842 | 1.8 | 088 |", "| 4 | 509 | {} | 073 |"]
    table = below("| Threads/Processos | Tempo (s) | Speedup | Eficiência |", *rows)
    assert not broken(pasted(table.format(2.9)))
    assert broken(pasted(table.format(3.4))) == {"quoted-against-own"}


def test_threads_in_russian_have_three_forms() -> None:
    rows = ["| 800 | 1.0x | 1.9x | 4.7x |", "| 900 | 1.0x | 1.8x | 5.2x |"]
    result = pasted(below("| Размер | 1 поток | 2 потока | 8 потоков |", *rows))
    assert result.reading == {"world_size": "world_size", "speedup": "speedup"}


@pytest.mark.parametrize(
    ("name", "cells"),
    {
        "Número de hilos": ["1 hilo", "2 hilos", "4 hilos"],
        "Количество потоков": ["1 поток", "2 потока", "4 потока"],
        "スレッド数": ["1スレッド", "2スレッド", "4スレッド"],
        "GPU 개수": ["1장", "2장", "4장"],
    }.items(),
)
def test_counts_with_what_they_count(name: str, cells: list[str]) -> None:
    rows = [f"{cell};{time}" for cell, time in zip(cells, (8.0, 4.1, 1.6), strict=True)]
    result = pasted("\n".join([f"{name};time (s)", *rows, ""]))
    assert result.reading[name] == "world_size" and broken(result) == {"super-linear"}


def test_one_cell_can_show_that_commas_are_decimal() -> None:
    result = pasted(below("| Потоки | Время, сек |", "| 1 | 1,284 |", "| 15 | 0,318 |"))
    assert broken(result) == set()
    devices = pasted(below("| Threads | Time (ms) | GPUs |", "| 1 | 1,284 | 0,1 |"))
    assert devices.reading["Time (ms)"] == "time"


def test_times_in_east_asian_units() -> None:
    assert duration("~2分44秒") == 164
    assert duration("4分") == duration("4분") == 240
    assert duration("102일") == 102 * 86400
    assert duration("3時間") == duration("3시간") == 3 * 3600
