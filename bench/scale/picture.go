package main

import (
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// shown are the rows of the picture, from top to bottom.
var shown = []struct{ name, episode, what string }{
	{"get a pod", "steady", "GET pods resource"},
	{"list a namespace's pods", "steady", "LIST pods namespace"},
	{"page of 500 pods", "steady", "LIST pods cluster"},
	{"renew a lease", "steady", "PUT leases resource"},
	{"event, from etcd to its reader", "steady", "watch latency"},
	{"the same while 10 % of the kubelets restart", "storm", "watch latency"},
	{"restarted kubelet reads all services", "storm", "sync of all services"},
	{"controller reads all that it needs", "start", "sync of a controller"},
}

var colours = []color.RGBA{{R: 0xd9, G: 0x5f, B: 0x02, A: 0xff}, {R: 0x1b, G: 0x6c, B: 0xa8, A: 0xff}, {R: 0x3a, G: 0x9d, B: 0x5d, A: 0xff}}

// draw draws the 99th percentiles of all roads.
func (r *results) draw(path string) error {
	p := plot.New()
	p.Title.Text = "99th percentiles, directly and through watchproxy"
	p.X.Label.Text = "ms"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = false, false
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 0xe0}, color.Gray{Y: 0xe0}
	p.Add(grid)
	for i, road := range r.roads {
		var points plotter.XYs
		for n, row := range shown {
			if f, ok := r.find(road, row.episode, row.what); ok && f.data["Perc99"] > 0 {
				points = append(points, plotter.XY{X: f.data["Perc99"], Y: float64(len(shown) - 1 - n)})
			}
		}
		if len(points) == 0 {
			continue
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		scatter.GlyphStyle = draw.GlyphStyle{Color: colours[i], Radius: vg.Points(5), Shape: draw.CircleGlyph{}}
		p.Add(scatter)
		p.Legend.Add(road, scatter)
	}
	var names []string
	for _, row := range slices.Backward(shown) {
		names = append(names, row.name)
	}
	p.NominalY(names...)
	return p.Save(8*vg.Inch, 4*vg.Inch, path)
}
