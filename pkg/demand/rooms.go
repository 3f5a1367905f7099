// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import "math"

// MaxGroups is how many groups of requests are told apart.
const MaxGroups = 12

// What a room is worth where GPUs are in domains: see [Prices].
const (
	// DomainFloor keeps nearly all free GPUs in whole domains at any load.
	DomainFloor = 0.03
	// Scarce is the price, in parts of its GPUs, of a room that will be missed for certain.
	Scarce = 0.6
)

// Rooms are how many requests of each group find room. Where not all kinds of a group fit, it is a fraction.
type Rooms [MaxGroups]float32

// Dot is the sum of the products of the groups.
func (r *Rooms) Dot(other *Rooms) float64 {
	var sum float32
	for i := range r {
		sum += r[i] * other[i]
	}
	return float64(sum)
}

// Group are requests that the same places suit.
type Group struct {
	// GPUs is the mean number of GPUs of a request, Share the part, 0 to 1, that all are of the demand for GPUs.
	GPUs, Share float64
}

// Stock is the room that all places of a cluster have: nodes, or NVSwitch domains.
type Stock struct {
	rooms [MaxGroups]float64
	// common has, by two groups, the rooms of the second in places that have room for the first.
	common [MaxGroups][MaxGroups]float64
}

// Change replaces the rooms of a place.
func (s *Stock) Change(before, after *Rooms) {
	s.add(before, -1)
	s.add(after, 1)
}

func (s *Stock) add(rooms *Rooms, sign float64) {
	for g, room := range rooms {
		if room == 0 {
			continue
		}
		s.rooms[g] += sign * float64(room)
		for h, other := range rooms {
			s.common[g][h] += sign * float64(min(room, 1)*other)
		}
	}
}

// Prices are what the room for one request of each group is worth, in GPUs. floor is what it is worth in any case, in
// parts of the request's GPUs and for a group that is all of the demand; scarce what it is worth if it will be missed for
// certain. idle are the cluster's idle GPUs: as many GPUs as that will be asked for until it is full, by each group in
// proportion to its share. A request of another group for as many GPUs or more takes as much of a group's room as there is, on
// average, where it finds its own. There are at most MaxGroups groups.
func Prices(groups []Group, stock *Stock, idle, floor, scarce float64) Rooms {
	var prices Rooms
	for g, of := range groups {
		expected := idle * of.Share / of.GPUs
		for h, other := range groups {
			if h != g && other.GPUs >= of.GPUs && stock.rooms[h] > 0 {
				expected += idle * other.Share / other.GPUs * stock.common[h][g] / stock.rooms[h]
			}
		}
		missed := normal((caution*expected - stock.rooms[g]) / math.Sqrt(expected+1))
		prices[g] = float32(of.GPUs * (floor*math.Sqrt(of.Share) + scarce*missed))
	}
	return prices
}

// caution is by how much more the demand for rooms is taken to be than expected: rooms are also lost to CPU,
// and to requests for one GPU that find no other place.
const caution = 1.2

// normal is the cumulative distribution function of the standard normal distribution.
func normal(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
