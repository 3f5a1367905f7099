// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
)

// Measures of the chart, in pixels.
const (
	chartWidth, chartLeft, chartRight = 860, 110, 30
	chartTop, chartRow, chartBottom   = 70, 34, 40
)

// chartSeries are the variants that the chart shows, and how. Shape and colour both tell them apart.
var chartSeries = []struct {
	variant, label, colour string
	shape                  func(x, y float64, colour string) string
}{
	{"random", "Random", "#999999", cross},
	{"bestfit", "BestFit", "#e69f00", diamond},
	{"fgd", "FGD", "#0072b2", square},
	{"switchyard", "Switchyard", "#009e73", circle},
	{moved, "Switchyard, 1 move per 100 arrivals", "#cc79a7", triangle},
}

// chart is a dot plot of what is allocated at 130 % arrived, with 95 % confidence intervals.
func chart(records []record) []byte {
	type dot struct {
		row, series int
		estimate
	}
	var dots []dot
	var rows []string
	low, high := math.Inf(1), math.Inf(-1)
	for _, workload := range workloads {
		any := false
		for i, series := range chartSeries {
			found := samples(records, workload, series.variant)
			if len(found) == 0 {
				continue
			}
			any = true
			e := estimateOf(values(found, allocated130))
			if math.IsInf(e.half, 0) {
				e.half = 0
			}
			dots = append(dots, dot{len(rows), i, e})
			low, high = min(low, e.mean-e.half), max(high, e.mean+e.half)
		}
		if any {
			rows = append(rows, workload)
		}
	}
	if len(rows) == 0 {
		low, high = 0, 100
	}
	low, high = math.Floor(low), math.Ceil(high)
	x := func(value float64) float64 {
		return chartLeft + (value-low)/(high-low)*(chartWidth-chartLeft-chartRight)
	}
	height := chartTop + chartRow*len(rows) + chartBottom
	bottom := float64(height - chartBottom)

	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" role="img">`+"\n", chartWidth, height)
	fmt.Fprintf(&svg, "<title>GPUs allocated when demand for 130 %% of them has arrived</title>\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", chartWidth, height)
	fmt.Fprintf(&svg, "<text x=\"%d\" y=\"20\" font-size=\"15\">GPUs allocated, %%, when demand for 130 %% of them has arrived (mean, 95 %% interval)</text>\n", 10)
	at := 10.0
	for _, series := range chartSeries {
		fmt.Fprintf(&svg, "%s<text x=\"%.0f\" y=\"48\">%s</text>\n", series.shape(at+6, 44, series.colour), at+16, series.label)
		at += 40 + 7.2*float64(len(series.label))
	}
	for value := low; value <= high; value++ {
		if int(value)%2 != 0 && high-low > 12 {
			continue
		}
		fmt.Fprintf(&svg, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n",
			x(value), chartTop-10, x(value), bottom, x(value), bottom+18, value)
	}
	for i, name := range rows {
		fmt.Fprintf(&svg, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", chartLeft-12, rowY(i)+4, name)
	}
	for _, d := range dots {
		series := chartSeries[d.series]
		y := rowY(d.row) + float64(d.series-len(chartSeries)/2)*3
		fmt.Fprintf(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>%s\n",
			x(d.mean-d.half), y, x(d.mean+d.half), y, series.colour, series.shape(x(d.mean), y, series.colour))
	}
	svg.WriteString("</svg>\n")
	return []byte(svg.String())
}

func rowY(row int) float64 { return float64(chartTop+chartRow*row) + chartRow/2 }

func circle(x, y float64, colour string) string {
	return fmt.Sprintf(`<circle cx="%.1f" cy="%.1f" r="4.5" fill="%s"/>`, x, y, colour)
}

func square(x, y float64, colour string) string {
	return fmt.Sprintf(`<rect x="%.1f" y="%.1f" width="8" height="8" fill="%s"/>`, x-4, y-4, colour)
}

func diamond(x, y float64, colour string) string {
	return polygon(colour, x, y-5, x+5, y, x, y+5, x-5, y)
}

func triangle(x, y float64, colour string) string {
	return polygon(colour, x, y-5, x+5, y+4, x-5, y+4)
}

func polygon(colour string, coordinates ...float64) string {
	var points []string
	for i := 0; i < len(coordinates); i += 2 {
		points = append(points, fmt.Sprintf("%.1f,%.1f", coordinates[i], coordinates[i+1]))
	}
	return fmt.Sprintf(`<polygon points="%s" fill="%s"/>`, strings.Join(points, " "), colour)
}

func cross(x, y float64, colour string) string {
	return fmt.Sprintf(`<path d="M%.1f %.1fl8 8m0 -8l-8 8" stroke="%s" stroke-width="2"/>`, x-4, y-4, colour)
}
